"""Protocol Buffers and gRPC code from the distribution's protoc."""

def cc_proto_and_grpc(name, protos, services, root = "", deps = []):
    """Makes //...:NAME_proto (messages) and //...:NAME_grpc (stubs).

    Args:
      name: prefix of the two libraries.
      protos: all .proto files of the package.
      services: those of them that define services.
      root: folder from which imports and includes count; "" is the top.
      deps: more libraries that the generated code needs.
    """
    stems = [p[:-len(".proto")] for p in protos]
    service_stems = [p[:-len(".proto")] for p in services]
    outs = ([s + ".pb.h" for s in stems] + [s + ".pb.cc" for s in stems] +
            [s + ".grpc.pb.h" for s in service_stems] +
            [s + ".grpc.pb.cc" for s in service_stems])

    out_dir = "$(GENDIR)/" + root
    prefix = "/" + root if root else None

    native.genrule(
        name = name + "_generated",
        srcs = protos,
        outs = outs,
        cmd = " ".join([
            "protoc --proto_path=" + (root or "."),
            "--cpp_out=" + out_dir,
            "--grpc_out=" + out_dir,
            "--plugin=protoc-gen-grpc=$$(command -v grpc_cpp_plugin)",
            "$(SRCS)",
        ]),
    )
    native.genrule(
        name = name + "_descriptor",
        srcs = protos,
        outs = [name + "_descriptor.pb"],
        cmd = ("protoc --proto_path=" + (root or ".") +
               " --descriptor_set_out=$@ $(SRCS)"),
    )
    native.cc_library(
        name = name + "_proto",
        srcs = [s + ".pb.cc" for s in stems],
        hdrs = [s + ".pb.h" for s in stems],
        # A shared library does not export them.
        copts = [
            "-fvisibility=hidden",
            "-w",
        ],
        strip_include_prefix = prefix,
        deps = ["@com_google_protobuf//:protobuf"] + deps,
    )
    native.cc_library(
        name = name + "_grpc",
        srcs = [s + ".grpc.pb.cc" for s in service_stems],
        hdrs = [s + ".grpc.pb.h" for s in service_stems],
        # A shared library does not export them.
        copts = [
            "-fvisibility=hidden",
            "-w",
        ],
        strip_include_prefix = prefix,
        deps = [
            ":" + name + "_proto",
            "@com_github_grpc_grpc//:grpc++",
        ],
    )
