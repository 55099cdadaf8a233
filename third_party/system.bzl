"""Bridges from Bazel labels to libraries that the distribution installed.

Each rule asks pkg-config for the link line and writes a cc_library without
sources. Headers come from the compiler's own search path; a library with
headers elsewhere is symlinked into the repository.
"""

load(":abseil.bzl", "ABSEIL_TARGETS")

_HEADER = """\
package(default_visibility = ["//visibility:public"])
"""

_LIBRARY = """
cc_library(
    name = "{name}",
    hdrs = {hdrs},
    defines = {defines},
    includes = {includes},
    linkopts = {linkopts},
)
"""

def _missing(what):
    fail(("{} is not installed; './dev setup' installs what the build needs " +
          "(third_party/packages.txt is the list)").format(what))

def _pkg_config(ctx, option, package):
    result = ctx.execute(["pkg-config", option, package])
    if result.return_code != 0:
        _missing("pkg-config package '{}'".format(package))
    return [flag for flag in result.stdout.strip().split(" ") if flag]

def _deduplicate(flags):
    # The shared libraries resolve their own dependencies, so a repeated -l
    # adds nothing but link time.
    seen = {}
    for flag in flags:
        seen[flag] = True
    return seen.keys()

def _system_library_impl(ctx):
    if ctx.attr.probe and not ctx.path("/usr/include/" + ctx.attr.probe).exists:
        _missing("header '{}'".format(ctx.attr.probe))
    build = _HEADER
    names = {name: True for name in ctx.attr.packages.keys()}
    names.update({name: True for name in ctx.attr.extra_linkopts.keys()})
    for name in names:
        linkopts = list(ctx.attr.extra_linkopts.get(name, []))
        defines = list(ctx.attr.defines.get(name, []))
        for package in ctx.attr.packages.get(name, []):
            linkopts += _pkg_config(ctx, "--libs", package)
            for flag in _pkg_config(ctx, "--cflags-only-other", package):
                if flag.startswith("-D"):
                    defines.append(flag[2:])
        hdrs = "[]"
        includes = []
        folder = ctx.attr.includes.get(name)
        if name in ctx.attr.include_packages:
            package = ctx.attr.include_packages[name]
            folder = _pkg_config(ctx, "--variable=includedir", package)[0]
        if folder:
            ctx.symlink(folder, name + "_include")
            hdrs = "glob([\"{}_include/**\"])".format(name)
            includes = [name + "_include"]
        build += _LIBRARY.format(
            name = name,
            hdrs = hdrs,
            defines = repr(defines),
            includes = repr(includes),
            linkopts = repr(_deduplicate(linkopts)),
        )
    ctx.file("BUILD.bazel", build)

system_library = repository_rule(
    implementation = _system_library_impl,
    attrs = {
        "packages": attr.string_list_dict(
            doc = "target name -> pkg-config packages",
        ),
        "extra_linkopts": attr.string_list_dict(
            doc = "target name -> link options that no .pc file gives",
        ),
        "defines": attr.string_list_dict(),
        "includes": attr.string_dict(
            doc = "target name -> include folder outside the default path",
        ),
        "include_packages": attr.string_dict(
            doc = "target name -> pkg-config package that knows such a folder",
        ),
        "probe": attr.string(
            doc = "a header under /usr/include that must exist",
        ),
    },
    local = True,
)

def _system_abseil_impl(ctx):
    ctx.file("BUILD.bazel", _HEADER)
    for folder, targets in ABSEIL_TARGETS.items():
        build = _HEADER
        for target in targets:
            build += _LIBRARY.format(
                name = target,
                hdrs = "[]",
                defines = "[]",
                includes = "[]",
                linkopts = repr(_deduplicate(
                    _pkg_config(ctx, "--libs", "absl_" + target),
                )),
            )
        ctx.file("absl/{}/BUILD.bazel".format(folder), build)

system_abseil = repository_rule(
    implementation = _system_abseil_impl,
    local = True,
)

def _system_cuda_impl(ctx):
    root = ctx.os.environ.get("CUDA_HOME", "/usr/local/cuda")
    found = (ctx.path(root + "/include/cuda_runtime_api.h").exists and
             ctx.path(root + "/include/nccl.h").exists)
    if found:
        ctx.symlink(root + "/include", "include")
    build = _HEADER
    build += _LIBRARY.format(
        name = "headers",
        hdrs = "glob([\"include/**\"])" if found else "[]",
        defines = repr(["MUSTER_HAVE_CUDA=1"] if found else []),
        includes = repr(["include", "include/cccl"] if found else []),
        # NCCL and the CUDA runtime are loaded at run time (dlopen), so that
        # one binary runs with and without a GPU.
        linkopts = repr(["-ldl"]),
    )
    ctx.file("BUILD.bazel", build)

system_cuda = repository_rule(
    doc = "Headers of CUDA and NCCL where they are installed, else nothing.",
    implementation = _system_cuda_impl,
    environ = ["CUDA_HOME"],
    local = True,
)

# Parts of the C library, whose archives are empty.
_C_LIBRARY = ["atomic", "c", "dl", "m", "pthread", "rt"]

def _static_archives_impl(ctx):
    folder = _pkg_config(ctx, "--variable=libdir", "libssl")[0]
    names = list(ctx.attr.extra)
    for package in ctx.attr.packages:
        result = ctx.execute(["pkg-config", "--static", "--libs-only-l", package])
        if result.return_code != 0:
            _missing("pkg-config package '{}'".format(package))
        names += [flag[2:] for flag in result.stdout.strip().split(" ") if flag]
    names = [
        name
        for name in _deduplicate(names)
        if name not in ctx.attr.exclude and name not in _C_LIBRARY
    ]
    archives = ["{}/lib{}.a".format(folder, name) for name in names]
    for archive in archives:
        if not ctx.path(archive).exists:
            _missing("archive '{}'".format(archive))
    ctx.file("lib/.folder", "")
    result = ctx.execute(
        ["python3", ctx.path(Label("//third_party:pic_archives.py")), "lib"] + archives,
        timeout = 600,
    )
    if result.return_code != 0:
        fail("pic_archives.py: " + result.stderr)
    ctx.file("BUILD.bazel", _HEADER + """
filegroup(
    name = "archives",
    srcs = glob(["lib/*.a"]),
)
""")
    linkopts = (["-Lexternal/{}/lib".format(ctx.name), "-Wl,--start-group"] +
                ["-l" + name for name in names] + ["-Wl,--end-group"])
    ctx.file("linkopts.bzl", "LINKOPTS = " + repr(linkopts) + "\n")

static_archives = repository_rule(
    doc = "A folder with the archives of packages, made fit for a shared " +
          "library (pic_archives.py). A link with LINKOPTS and the input " +
          "`archives` finds them before the shared libraries.",
    implementation = _static_archives_impl,
    attrs = {
        "exclude": attr.string_list(
            doc = "libraries of the packages that are not wanted",
        ),
        "extra": attr.string_list(
            doc = "libraries that no package names, as after -l",
        ),
        "packages": attr.string_list(
            doc = "pkg-config packages, with what they need themselves",
            mandatory = True,
        ),
    },
    local = True,
)
