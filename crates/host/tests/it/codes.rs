//! Every code that the kernel, the rules and the HTTP API give has its code in the protocol of JSON lines.

use mainspring_api::jsonl::codes::is_mapped;
use mainspring_core::Refusal;
use mainspring_kernel::Error;

#[test]
fn every_code_of_the_kernel_and_of_http_is_mapped_to_the_protocol() {
    let http = mainspring_http::PROBLEMS.iter().map(|(_, code)| code);
    for code in Error::CODES.iter().chain(Refusal::CODES).chain(http) {
        assert!(is_mapped(code), "{code} is not listed in CODE_MAP of crates/api/src/jsonl/codes.rs");
    }
}
