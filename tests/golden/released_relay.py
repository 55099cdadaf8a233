"""A relay between clients and a coordinator that knows an older protocol.

All that it knows of the protocol is the text of a descriptor (released.v1.txt).
It parses each message of either side by that, removes the fields that are not
in it, and sends on the rest. A call that is not in it is UNIMPLEMENTED.

The end of a call goes through as it is, with the bytes of its status details:
what is inside those is not compared with the descriptor.
"""

import collections
import concurrent.futures
import threading

from google.protobuf import descriptor_pb2
from google.protobuf import descriptor_pool
from google.protobuf import duration_pb2
from google.protobuf import message_factory
from google.protobuf import text_format
import grpc

# Each call has one thread as long as it lasts.
CALLS_MAX = 64
# gRPC gives about this, which it does not take back, for no deadline.
FOREVER_SECONDS = 1e9
OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.so_reuseport", 0),
    ("grpc.enable_http_proxy", 0),
    # As the coordinator's: clients ping a silent one.
    ("grpc.http2.min_ping_interval_without_data_ms", 1000),
)


def read_protocol(text):
    """Calls by path ("/muster.v1.StoreService/Get"): the classes of their
    request and response."""
    files = descriptor_pb2.FileDescriptorSet()
    text_format.Parse(text, files)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(duration_pb2.DESCRIPTOR.serialized_pb)
    for file in files.file:
        pool.AddSerializedFile(file.SerializeToString())
    factory = message_factory.MessageFactory(pool)

    def get_class(type_name):
        return factory.GetPrototype(
            pool.FindMessageTypeByName(type_name.lstrip(".")))

    return {
        f"/{file.package}.{service.name}/{method.name}":
            (get_class(method.input_type), get_class(method.output_type))
        for file in files.file for service in file.service
        for method in service.method}


class ReleasedRelay(grpc.GenericRpcHandler):
    """Context that relays from `address` to the coordinator at `to`.

    `calls` counts the calls by path, those that are refused included;
    `reduced` the messages by type from which something was removed.
    """

    def __init__(self, protocol_text, to):
        self._protocol = read_protocol(protocol_text)
        self._lock = threading.Lock()
        self.calls = collections.Counter()
        self.reduced = collections.Counter()
        self._channel = grpc.insecure_channel(to, options=OPTIONS)
        self._server = grpc.server(
            concurrent.futures.ThreadPoolExecutor(CALLS_MAX), handlers=(self,),
            options=OPTIONS)
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"

    def __enter__(self):
        self._server.start()
        return self

    def __exit__(self, *unused):
        self._server.stop(None).wait()
        self._channel.close()

    def service(self, handler_call_details):
        path = handler_call_details.method
        with self._lock:
            self.calls[path] += 1
        if path not in self._protocol:
            return None  # gRPC answers UNIMPLEMENTED.
        # A unary call is on the wire a stream of one message.
        return grpc.stream_stream_rpc_method_handler(
            lambda requests, context: self._relay(path, requests, context))

    def _reduce(self, message_class, data):
        message = message_class.FromString(data)
        size = message.ByteSize()
        message.DiscardUnknownFields()
        if message.ByteSize() != size:
            with self._lock:
                self.reduced[message_class.DESCRIPTOR.full_name] += 1
        return message.SerializeToString()

    def _relay(self, path, requests, context):
        request_class, response_class = self._protocol[path]
        gone = threading.Event()

        def reduce_requests():
            try:
                for data in requests:
                    yield self._reduce(request_class, data)
            except grpc.RpcError:
                # The client has cancelled, and so does the callback below. An
                # end here would be a half-close.
                gone.wait()

        timeout = context.time_remaining()
        call = self._channel.stream_stream(path)(
            reduce_requests(),
            timeout=timeout if timeout < FOREVER_SECONDS else None,
            metadata=[(key, value) for key, value in
                      context.invocation_metadata() if key != "user-agent"])

        def cancel():
            call.cancel()
            gone.set()

        if not context.add_callback(cancel):
            cancel()
        try:
            for data in call:
                yield self._reduce(response_class, data)
        except grpc.RpcError:
            pass  # The call tells its end.
        context.set_trailing_metadata(call.trailing_metadata() or ())
        if call.code() != grpc.StatusCode.OK:
            context.abort(call.code(), call.details())
