//! What data two runs have in common.

use crc32fast::Hasher;

use super::Data;

/// Describes the data in a line.
pub fn checksum(data: &Data) -> String {
    let mut hasher = Hasher::new();
    for sample in data.learned.iter().chain(&data.held_out) {
        hasher.update(&(sample.given as u64).to_le_bytes());
        for token in &sample.tokens {
            hasher.update(&token.to_le_bytes());
        }
    }
    format!(
        "{} + {} samples with the checksum {:08x}",
        data.learned.len(),
        data.held_out.len(),
        hasher.finalize()
    )
}
