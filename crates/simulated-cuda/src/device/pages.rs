//! Large blocks of which few pages exist, when large launches are executed in part. What was never written reads as zeros and takes no memory of
//! the host, and it stays so when it is set to zero or copied.

use std::ops::Range;

/// Bytes from which on pages are looked at.
pub const LARGE: usize = 1 << 20;

/// Bytes of a page of the host.
fn page() -> u64 {
    // SAFETY: it asks for a constant.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u64::try_from(bytes).unwrap_or(4096)
}

/// Sets bytes to zero. Of many, whole pages go back to the host.
///
/// # Safety
/// The bytes are of a device's own mapping, which is private and anonymous, and nothing else uses them meanwhile.
pub unsafe fn zero(address: u64, bytes: usize) {
    let end = address + bytes as u64;
    let (first, last) = (address.next_multiple_of(page()), end / page() * page());
    if bytes < LARGE || first >= last {
        // SAFETY: by contract.
        return unsafe { std::ptr::write_bytes(address as *mut u8, 0, bytes) };
    }
    // SAFETY: by contract; pages of such a mapping that are given up read as zeros.
    let status = unsafe {
        libc::madvise(
            first as *mut _,
            (last - first) as usize,
            libc::MADV_DONTNEED,
        )
    };
    let whole = if status == 0 { first..last } else { end..end };
    for part in [address..whole.start, whole.end..end] {
        let bytes = (part.end - part.start) as usize;
        // SAFETY: by contract.
        unsafe { std::ptr::write_bytes(part.start as *mut u8, 0, bytes) };
    }
}

/// Fills memory with a value. Of much memory only the first and the last MiB are filled, and all of it with zeros.
///
/// # Safety
/// As for [`zero`]; the address is aligned for the type.
pub unsafe fn fill<T: Copy + Default + PartialEq>(address: u64, value: T, count: usize) {
    let bytes = count * size_of::<T>();
    let filled = |from: usize, count: usize| {
        let place = (address as *mut T).wrapping_add(from);
        // SAFETY: by contract. Any bytes are a number, but these may never have been written.
        unsafe { std::slice::from_raw_parts_mut(place.cast(), count) }
            .fill(std::mem::MaybeUninit::new(value));
    };
    if value == T::default() {
        // SAFETY: by contract.
        return unsafe { zero(address, bytes) };
    }
    let part = LARGE / size_of::<T>();
    if count <= 2 * part {
        return filled(0, count);
    }
    filled(0, part);
    filled(count - part, part);
}

/// The parts of a range in which pages exist or were moved to disk, and those in which none does, in turns. `None` if the host does not tell.
fn parts(range: Range<u64>) -> Option<Vec<(Range<u64>, bool)>> {
    use std::os::unix::fs::FileExt;
    /// A page is in memory, or on disk.
    const EXISTS: u64 = 0b11 << 62;
    let file = std::fs::File::open("/proc/self/pagemap").ok()?;
    let mut parts: Vec<(Range<u64>, bool)> = Vec::new();
    let mut entries = vec![0u8; 8 << 13];
    let pages = range.start / page()..range.end.div_ceil(page());
    for first in pages.clone().step_by(entries.len() / 8) {
        let count = (pages.end - first).min(entries.len() as u64 / 8);
        let entries = &mut entries[..count as usize * 8];
        file.read_exact_at(entries, first * 8).ok()?;
        for (number, entry) in (first..).zip(entries.as_chunks().0) {
            let exists = u64::from_ne_bytes(*entry) & EXISTS != 0;
            let start = (number * page()).max(range.start);
            let end = ((number + 1) * page()).min(range.end);
            match parts.last_mut() {
                Some((part, as_before)) if *as_before == exists => part.end = end,
                _ => parts.push((start..end, exists)),
            }
        }
    }
    Some(parts)
}

/// Copies bytes within devices' memory. Of many, only pages that exist are copied.
///
/// # Safety
/// As for [`zero`], for both.
pub unsafe fn copy(to: u64, from: u64, bytes: usize) {
    let apart = to.abs_diff(from) >= bytes as u64;
    let parts = (bytes >= LARGE && apart).then(|| parts(from..from + bytes as u64));
    for (part, exists) in parts
        .flatten()
        .unwrap_or_else(|| vec![(from..from + bytes as u64, true)])
    {
        let (at, bytes) = (to + (part.start - from), (part.end - part.start) as usize);
        match exists {
            // SAFETY: by contract. The two may overlap.
            true => unsafe { std::ptr::copy(part.start as *const u8, at as *mut u8, bytes) },
            // SAFETY: by contract.
            false => unsafe { zero(at, bytes) },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::range::Range;
    use super::*;

    /// The number of pages that exist.
    fn existing(range: std::ops::Range<u64>) -> u64 {
        let parts = parts(range).expect("Linux tells");
        let existing = parts.into_iter().filter(|(_, exists)| *exists);
        existing
            .map(|(part, _)| (part.end - part.start).div_ceil(page()))
            .sum()
    }

    #[test]
    fn copies_and_fills_make_no_pages_that_are_not_needed() {
        let mut range = Range::reserve(16 << 30);
        range.without_huge_pages();
        let bytes = 5usize << 30;
        let from = range.place(bytes as u64).expect("there is room") + 512;
        let to = range.place(bytes as u64).expect("there is room") + 1024;
        let bytes = bytes - 4096;
        let read = |address: u64| {
            // SAFETY: an address of the mapping.
            unsafe { (address as *const u32).read() }
        };
        let write = |address: u64, value: u32| {
            // SAFETY: an address of the mapping.
            unsafe { (address as *mut u32).write(value) };
        };
        let places = [0, 3 << 20, 4 << 30, bytes as u64 - 4];
        for (value, place) in (1..).zip(places) {
            write(from + place, value);
        }
        // Old contents are replaced, also by pages that do not exist.
        write(to + (1 << 30), 7);
        // SAFETY: both lie in the mapping, which nothing else uses.
        unsafe { copy(to, from, bytes) };
        for (value, place) in (1..).zip(places) {
            assert_eq!(read(to + place), value);
        }
        assert_eq!(read(to + (1 << 30)), 0);
        assert!(existing(to..to + bytes as u64) < 2000);
        // SAFETY: the same.
        unsafe { fill(to, 9u32, bytes / 4) };
        assert_eq!(
            [read(to), read(to + (1 << 31)), read(to + bytes as u64 - 4)],
            [9, 0, 9]
        );
        assert!(existing(to..to + bytes as u64) < 3000);
        // SAFETY: the same.
        unsafe { fill(to, 0u32, bytes / 4) };
        assert_eq!(places.map(|place| read(to + place)), [0; 4]);
        // What was read are pages of zeros.
        assert!(existing(to..to + bytes as u64) < 10);
    }

    #[test]
    fn parts_that_overlap_are_copied_as_they_were() {
        let mut range = Range::reserve(1 << 30);
        let start = range.place(16 << 20).expect("there is room");
        // SAFETY: the mapping is this test's own.
        let bytes = unsafe { std::slice::from_raw_parts_mut(start as *mut u8, 16 << 20) };
        for (index, byte) in bytes.iter_mut().enumerate() {
            *byte = (index % 251) as u8;
        }
        // SAFETY: the same; the slice is not used meanwhile.
        unsafe { copy(start + 1, start, 15 << 20) };
        assert!(
            bytes[1..15 << 20]
                .iter()
                .enumerate()
                .all(|(index, byte)| *byte == (index % 251) as u8)
        );
    }
}
