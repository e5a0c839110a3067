use candle_core::DType;

/// A tensor is not what was declared.
#[derive(Debug)]
pub(super) struct Fault {
    /// The row of its first dimension, if it is one row's fault.
    pub(super) row: Option<usize>,
    pub(super) found: String,
    pub(super) expected: String,
}

impl Fault {
    /// A fault of the whole tensor.
    pub(super) fn whole(found: impl Into<String>, expected: impl Into<String>) -> Self {
        Self {
            row: None,
            found: found.into(),
            expected: expected.into(),
        }
    }
}

/// What to do about a tensor of another dtype.
pub(super) fn conversion(found: DType, expected: DType) -> String {
    let call = format!("call `.to_dtype(DType::{expected:?})`");
    match (found, expected) {
        (DType::U8, _) if expected.is_float() => format!("{call}, and divide pixels by 255"),
        (DType::F64, DType::F32) => format!("{call}, or make it of `f32` numbers"),
        _ if found.is_float() && expected.is_int() => {
            format!("{call} if its values are whole numbers")
        }
        _ => call,
    }
}

/// Compares sizes; `None` is any.
pub(super) fn compare_shapes(found: &[usize], expected: &[Option<usize>]) -> Result<(), Fault> {
    if fits(found, expected) {
        return Ok(());
    }
    let remedy = remedy(found, expected);
    let remedy = remedy.map_or_else(String::new, |remedy| format!("; {remedy}"));
    let size = |size: &Option<usize>| size.map_or("_".to_owned(), |size| size.to_string());
    let sizes: Vec<_> = expected.iter().map(size).collect();
    Err(Fault::whole(
        format!("has shape {found:?}"),
        format!("[{}]{remedy}", sizes.join(", ")),
    ))
}

fn fits(found: &[usize], expected: &[Option<usize>]) -> bool {
    let mut sizes = found.iter().zip(expected);
    found.len() == expected.len()
        && sizes.all(|(found, expected)| expected.is_none_or(|expected| expected == *found))
}

/// A call that gives the expected shape, if it is plain which one is meant.
fn remedy(found: &[usize], expected: &[Option<usize>]) -> Option<String> {
    if let [samples, between @ .., last] = found {
        let moved = [&[*samples, *last], between].concat();
        if fits(&moved, expected) {
            let axes: Vec<_> = (1..found.len() - 1).map(|axis| axis.to_string()).collect();
            let (last, axes) = (found.len() - 1, axes.join(", "));
            return Some(format!(
                "if the channels come last, call `.permute((0, {last}, {axes}))`"
            ));
        }
    }
    let without = |axis: &usize| {
        let rest = [found.get(..*axis)?, found.get(axis + 1..)?].concat();
        (found.get(*axis) == Some(&1) && fits(&rest, expected)).then_some(())
    };
    let with = |axis: &usize| {
        let more = [found.get(..*axis)?, &[1], found.get(*axis..)?].concat();
        fits(&more, expected).then_some(())
    };
    if let Some(axis) = (0..=found.len()).find(|axis| with(axis).is_some()) {
        return Some(format!("call `.unsqueeze({axis})`"));
    }
    // The dimension of the samples last, since a batch of one sample has a 1 there too.
    if let Some(axis) = (0..found.len()).rev().find(|axis| without(axis).is_some()) {
        return Some(format!("call `.squeeze({axis})`"));
    }
    let (_, of_sample) = found.split_first()?;
    let (first, sizes) = expected.split_first()?;
    let sizes: Option<Vec<_>> = sizes.iter().copied().collect();
    let sizes = sizes.filter(|sizes| first.is_none() && !sizes.is_empty())?;
    // With as many dimensions they may be in another order, and `reshape` would mix up the elements.
    let is_same = sizes.len() != of_sample.len() && product(&sizes)? == product(of_sample)?;
    let sizes: Vec<_> = sizes.iter().map(usize::to_string).collect();
    is_same.then(|| format!("call `.reshape(((), {}))`", sizes.join(", ")))
}

fn product(sizes: &[usize]) -> Option<usize> {
    let mut sizes = sizes.iter();
    sizes.try_fold(1, |product: usize, size| product.checked_mul(*size))
}
