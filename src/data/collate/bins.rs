use std::collections::BTreeSet;

/// Puts items into bins of a capacity that none exceeds: the largest first, each into the fullest bin that has room for it (best fit
/// decreasing; Johnson 1974). Returns each bin's items; equal items keep their order.
///
/// At most 11/9 of the least possible number of bins are used, and 4 more.
pub fn best_fit(sizes: &[usize], capacity: usize) -> Vec<Vec<usize>> {
    let mut items: Vec<_> = sizes.iter().copied().enumerate().collect();
    items.sort_by_key(|(_, size)| std::cmp::Reverse(*size));
    let mut bins: Vec<Vec<usize>> = Vec::new();
    // Room and number of each bin.
    let mut rooms = BTreeSet::new();
    for (item, size) in items {
        let fullest = rooms.range((size, 0)..).next().copied();
        let (room, number) = fullest.unwrap_or((capacity, bins.len()));
        rooms.remove(&(room, number));
        rooms.insert((room.saturating_sub(size), number));
        match bins.get_mut(number) {
            Some(bin) => bin.push(item),
            None => bins.push(vec![item]),
        }
    }
    bins
}
