"""Uses libmuster beside a library that has a gRPC, protobuf, glog or Gloo, too.

    coexist.py torch|grpc first|last PROBE INIT_METHOD

`first`: the other library is loaded and used before libmuster; `last`: after.
"""

import concurrent.futures
import ctypes
import os
import sys
import tempfile


def use_torch():
    """All-reduces in a group of torch's own, over the packaged Gloo."""
    import torch
    import torch.distributed as dist
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group(
            "gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        values = torch.ones(4)
        dist.all_reduce(values)
        assert values.sum() == 4
        dist.destroy_process_group()


def use_grpc():
    """Calls a server in this process."""
    import grpc
    handler = grpc.method_handlers_generic_handler(
        "Echo", {"Say": grpc.unary_unary_rpc_method_handler(lambda text, _: text)})
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        assert channel.unary_unary("/Echo/Say")(b"hello", timeout=60) == b"hello"
    server.stop(None).wait()


def use_muster(probe, init_method):
    # Its symbols are offered to all libraries that are loaded later.
    library = ctypes.CDLL(probe, mode=ctypes.RTLD_GLOBAL)
    assert library.RunGroup(init_method.encode()) == 0


def main():
    other, order, probe, init_method = sys.argv[1:]
    use_other = {"torch": use_torch, "grpc": use_grpc}[other]
    steps = [use_other, lambda: use_muster(probe, init_method)]
    if order == "last":
        steps.reverse()
    # Each once more, when the other has left its state behind.
    for step in steps:
        step()
    use_other()
    print("done")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
