//! The size of a page, before it is decoded: a page of a few bytes may become any number of nulls, or of bytes.

/// Pages up to here are decoded whatever their column states.
const SMALL_BYTES: u64 = 16 << 20;
const SMALL_VALUES: u64 = 1 << 16;

/// Sizes when uncompressed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stated {
    pub bytes: u64,
    pub values: u64,
}

/// Refuses a page that is larger than the column that it belongs to.
pub(super) fn check(header: &[u8], column: Stated) -> Result<(), String> {
    let page = read(header).ok_or("has a page header that is not understood")?;
    let (bytes, values) = (column.bytes, column.values);
    if page.bytes <= bytes.max(SMALL_BYTES) && page.values <= values.max(SMALL_VALUES) {
        return Ok(());
    }
    Err(format!(
        "has a page of {} bytes and {} values, and its column states {bytes} and {values} in all",
        page.bytes, page.values
    ))
}

/// Reads the beginning of a page's header in Thrift's compact protocol, as every writer has it: integers, of which the second is the
/// page's size, and then the header of the page's own kind, which begins with the number of values.
fn read(mut header: &[u8]) -> Option<Stated> {
    const NEXT_INTEGER: u8 = 0x15;
    let mut integers = Vec::new();
    while let [NEXT_INTEGER, rest @ ..] = header {
        header = rest;
        integers.push(integer(&mut header)?);
    }
    let stated = |number: &i64| u64::try_from(*number).ok();
    match header {
        [kind, NEXT_INTEGER, rest @ ..] if kind & 0xF == 12 && kind >> 4 > 0 => {
            header = rest;
            Some(Stated {
                bytes: integers.get(1).and_then(stated)?,
                values: integer(&mut header).as_ref().and_then(stated)?,
            })
        }
        _ => None,
    }
}

/// Such as a size, or a checksum, which may be negative.
fn integer(bytes: &mut &[u8]) -> Option<i64> {
    let mut number = 0u64;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(byte & 0x7F) << shift;
        if *byte < 0x80 {
            return Some((number >> 1) as i64 ^ -((number & 1) as i64));
        }
    }
    None
}
