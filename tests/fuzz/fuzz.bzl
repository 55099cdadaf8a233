"""A fuzz target, with the inputs of corpus/NAME."""

def fuzz_target(name, src, deps, mutations = 10000):
    native.cc_test(
        name = name + "_fuzz",
        size = "small",
        srcs = [src],
        args = select({
            ":libfuzzer": [],
            "//conditions:default": [
                "--mutations=%d" % mutations,
                "tests/fuzz/corpus/" + name,
            ],
        }),
        data = native.glob(["corpus/" + name + "/*"]),
        linkopts = select({
            ":libfuzzer": ["-fsanitize=fuzzer"],
            "//conditions:default": [],
        }),
        deps = deps + [":fuzz"] + select({
            ":libfuzzer": [],
            "//conditions:default": [":replay"],
        }),
    )
