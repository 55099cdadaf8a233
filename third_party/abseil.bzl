"""Which Abseil targets the tree uses, by folder as Abseil's own BUILD files.

The name of a target is that of its pkg-config file without "absl_".
"""

ABSEIL_TARGETS = {
    "base": ["config", "core_headers"],
    "cleanup": ["cleanup"],
    "container": ["btree", "flat_hash_map", "flat_hash_set", "inlined_vector"],
    "debugging": ["failure_signal_handler", "symbolize"],
    "flags": ["flags", "flags_config", "flags_marshalling", "flags_parse", "flags_usage"],
    "functional": ["any_invocable", "function_ref"],
    "hash": ["hash"],
    "memory": ["memory"],
    "random": ["random_random"],
    "status": ["status", "statusor"],
    "strings": ["cord", "str_format", "strings"],
    "synchronization": ["synchronization"],
    "time": ["time"],
    "types": ["optional", "span", "variant"],
}
