"""Tests of GoogleTest's, tests that are scripts, and benchmarks."""

def muster_test(name, srcs = None, size = "small", deps = [], **kwargs):
    """A test of GoogleTest's.

    Args:
      name: what its file is called, without .cc.
      srcs: its files, if they are others.
      size: Bazel's word for how long it may take.
      deps: what it tests; GoogleTest and its main() come by themselves.
      **kwargs: as for cc_test.
    """
    native.cc_test(
        name = name,
        size = size,
        srcs = [name + ".cc"] if srcs == None else srcs,
        deps = deps + ["@com_google_googletest//:gtest_main"],
        **kwargs
    )

def muster_tests(names, **kwargs):
    """Tests that differ in nothing but their files.

    Args:
      names: what the files are called, without .cc; with the folder, if that
        has no BUILD file of its own, which is no part of a test's name.
      **kwargs: as for muster_test.
    """
    for name in names:
        muster_test(
            name = name.rpartition("/")[2],
            srcs = [name + ".cc"],
            **kwargs
        )

def script_test(name, script = None, path_args = [], args = [], data = [], **kwargs):
    """A test that is a script, with an interpreter line of its own.

    Args:
      name: what the script is called, without .py.
      script: the script, if it is called something else.
      path_args: programs and files whose paths are its first arguments.
      args: its further arguments.
      data: files that it reads besides.
      **kwargs: as for sh_test; a test is any program.
    """
    native.sh_test(
        name = name,
        srcs = [script or name + ".py"],
        args = ["$(rootpath %s)" % file for file in path_args] + args,
        data = path_args + data,
        **kwargs
    )

def muster_benchmark(name, deps, min_time = "0"):
    """A benchmark, and NAME_smoke_test: one short run, so that it cannot rot.

    Args:
      name: what its file is called, without .cc.
      deps: what it measures; Google Benchmark comes by itself.
      min_time: how many seconds each case takes in the test, at least.
    """
    attributes = {
        "srcs": [name + ".cc"],
        "deps": deps + ["@com_google_benchmark//:benchmark"],
    }
    native.cc_binary(name = name, testonly = True, **attributes)
    native.cc_test(
        name = name + "_smoke_test",
        size = "small",
        args = ["--benchmark_min_time=" + min_time],
        **attributes
    )
