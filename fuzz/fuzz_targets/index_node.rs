#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| vt_tree::parsers::index_node(data));
