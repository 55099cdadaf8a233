"""Tests of GoogleTest's."""

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
