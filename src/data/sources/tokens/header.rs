//! The header of the token files that llm.c's scripts write: 256 integers of 32 bits, of which the first three are a magic number, the
//! version and the number of tokens.

use super::TokenType;
use crate::error::DataError;
use crate::fixed_file::FixedFile;

const BYTES: u64 = 1024;

/// The type of the tokens and the bytes before the first one, of a file that begins with such a header. `asked` is the type that the
/// caller has set.
pub(super) fn read_header(
    file: &FixedFile,
    asked: Option<TokenType>,
) -> Result<Option<(TokenType, usize)>, DataError> {
    if file.len() < BYTES {
        return Ok(None);
    }
    let mut first = [0; 12];
    let read = file.read_at(&mut first, 0);
    read.map_err(|reason| DataError::io(file.path(), 0, reason))?;
    let integer = |at: usize| {
        first
            .as_chunks()
            .0
            .get(at)
            .map_or(0, |it| u32::from_le_bytes(*it))
    };
    let (version, count) = (integer(1), u64::from(integer(2)));
    let (known, token) = match integer(0) {
        20_240_520 => (1, TokenType::U16),
        20_240_801 => (7, TokenType::U32),
        _ => return Ok(None),
    };
    let (bytes, size) = (file.len() - BYTES, token.size_in_bytes() as u64);
    let problem = if version != known {
        format!("version {version}, and version {known} is supported")
    } else if asked.is_some_and(|asked| asked != token) {
        format!("tokens of type {token:?}: leave out `dtype`, or set that type")
    } else if bytes != count * size {
        let found = bytes / size;
        format!("{count} tokens, and {found} follow it: the file is not whole")
    } else {
        return Ok(Some((token, BYTES as usize)));
    };
    let problem = format!(
        "begins with llm.c's header, which states {problem}; `skip_header(0)` reads a file without a header, and the header as tokens"
    );
    Err(DataError::file(file.path(), 0, problem))
}
