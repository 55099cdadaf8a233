"""The tests of one file."""

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
