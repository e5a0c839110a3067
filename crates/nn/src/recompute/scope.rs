//! What is known of regions on this thread: whether they are recomputed, what they hold, and when they were.

use std::cell::{Cell, RefCell};
use std::thread::LocalKey;
use std::time::Instant;

use candle_core::{Result, Tensor};

use crate::scope::{OnDrop, current};

/// The regions that ran while [`watch`] did.
///
/// ```
/// use candle_core::{DType, Device, Tensor, Var};
/// use candle_headroom_nn::loss::cross_entropy;
/// use candle_headroom_nn::scope::watch;
///
/// let logits = Var::zeros((3, 4), DType::F32, &Device::Cpu)?;
/// let targets = Tensor::new(&[0u32, 1, 2], &Device::Cpu)?;
/// let (_, watched) = watch(false, || cross_entropy(&logits, &targets));
/// assert_eq!((watched.count, watched.logits), (0, 3 * 4 * 4));
/// # Ok::<(), candle_core::Error>(())
/// ```
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Watched {
    /// Number of regions; those within others do not count.
    pub count: usize,
    /// What the activations of the regions take if they are kept; `None` if not measured.
    pub held: Option<Held>,
    /// Bytes of the largest logits of a cross-entropy.
    pub logits: u64,
}

/// Bytes of activations.
///
/// ```
/// use std::cell::Cell;
/// use std::rc::Rc;
///
/// use candle_core::{DType, Device, Var};
/// use candle_headroom_nn::recompute;
/// use candle_headroom_nn::scope::{Surroundings, watch, within};
///
/// /// Memory that grows by 4096 bytes from one look to the next.
/// struct Growing(Cell<u64>);
///
/// impl Surroundings for Growing {
///     fn in_use(&self) -> Option<u64> {
///         self.0.set(self.0.get() + 4096);
///         Some(self.0.get())
///     }
/// }
///
/// let x = Var::ones(256, DType::F32, &Device::Cpu)?;
/// let run = || watch(true, || recompute(x.as_tensor(), |x| x.exp()));
/// let (_, watched) = within(Rc::new(Growing(Cell::new(0))), run);
/// let held = watched.held.expect("measured");
/// assert_eq!(held.all, 4096 - 1024); // without the 256 numbers of the output
/// # Ok::<(), candle_core::Error>(())
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Held {
    /// Those of all regions.
    pub all: u64,
    /// Those of the largest region.
    pub largest: u64,
}

thread_local! {
    /// Whether marked regions are kept like other layers.
    static KEEPS: Cell<bool> = const { Cell::new(false) };
    static WATCHED: RefCell<Option<Watched>> = const { RefCell::new(None) };
    /// Regions that are running around this point.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
    static IS_AGAIN: Cell<bool> = const { Cell::new(false) };
}

/// Sets a thread's cell until the result is dropped.
fn set<T: Copy + 'static>(key: &'static LocalKey<Cell<T>>, value: T) -> OnDrop<impl FnMut()> {
    let outer = key.replace(value);
    OnDrop(move || key.set(outer))
}

/// Runs `work`, in which marked regions keep their activations or are recomputed, and returns what is known of them. What they hold is
/// measured by [`Surroundings::in_use`](crate::scope::Surroundings::in_use).
///
/// ```
/// use candle_core::{DType, Device, Var};
/// use candle_headroom_nn::recompute;
/// use candle_headroom_nn::scope::watch;
///
/// let x = Var::ones(3, DType::F32, &Device::Cpu)?;
/// let (y, watched) = watch(true, || recompute(x.as_tensor(), |x| x.exp())); // keeps activations
/// assert_eq!(watched.count, 1);
/// assert!(watched.held.is_none()); // nobody measures
/// assert!(y?.sum_all()?.backward()?.get(&x).is_some());
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn watch<T>(keeps: bool, work: impl FnOnce() -> T) -> (T, Watched) {
    let _keeps = set(&KEEPS, keeps);
    let mut outer = WATCHED.replace(Some(Watched::default()));
    let _restored = OnDrop(|| WATCHED.set(outer.take()));
    let done = work();
    let watched = WATCHED.take().unwrap_or_default();
    (done, watched)
}

/// Notes that a cross-entropy keeps these logits.
pub(crate) fn note_logits(logits: &Tensor) {
    WATCHED.with_borrow_mut(|watched| {
        if let Some(watched) = watched {
            watched.logits = watched.logits.max(bytes_of(std::slice::from_ref(logits)));
        }
    });
}

/// Whether a region runs around this point.
pub(super) fn is_within() -> bool {
    DEPTH.get() > 0
}

/// Runs `run` as a part of a region.
pub(super) fn inside<T>(run: impl FnOnce() -> T) -> T {
    let _depth = set(&DEPTH, DEPTH.get() + 1);
    run()
}

pub(super) fn keeps() -> bool {
    KEEPS.get()
}

/// Runs a region for the first time, and measures what its activations hold besides the outputs. `run` returns those with the graph
/// that they came from.
pub(super) fn region(run: impl FnOnce() -> Result<Vec<Tensor>>) -> Result<Vec<Tensor>> {
    let depth = DEPTH.get();
    let _depth = set(&DEPTH, depth + 1);
    if depth > 0 || IS_AGAIN.get() || WATCHED.with_borrow(Option::is_none) {
        return run();
    }
    let surroundings = current();
    let in_use = || surroundings.as_ref()?.in_use();
    // Also one that fails counts, so that it is known to be there.
    let count = WATCHED.with_borrow_mut(|watched| {
        let count = watched.as_mut().map(|watched| &mut watched.count);
        count.map_or(0, |count| std::mem::replace(count, *count + 1))
    });
    let before = in_use();
    let outputs = run()?;
    let more = before
        .zip(in_use())
        .map(|(before, after)| after.saturating_sub(before));
    let held = more.map(|more| more.saturating_sub(bytes_of(&outputs)));
    WATCHED.with_borrow_mut(|watched| {
        if let Some(watched) = watched {
            let so_far = match count {
                0 => Some(Held::default()),
                _ => watched.held,
            };
            watched.held = so_far.zip(held).map(|(so_far, held)| Held {
                all: so_far.all.saturating_add(held),
                largest: so_far.largest.max(held),
            });
        }
    });
    Ok(outputs)
}

/// Runs the closure of a region again.
pub(super) fn again<T>(run: impl FnOnce() -> T) -> T {
    let _again = set(&IS_AGAIN, true);
    run()
}

/// Differentiates a region, and tells the surroundings, unless another one is differentiated at this time.
pub(super) fn differentiated<T>(differentiate: impl FnOnce() -> Result<T>) -> Result<T> {
    let surroundings = current();
    let _again = surroundings
        .as_ref()
        .map(|s| s.begins_again())
        .transpose()?;
    let depth = DEPTH.get();
    let _depth = set(&DEPTH, depth + 1);
    let began = Instant::now();
    let done = differentiate();
    if let Some(surroundings) = surroundings.filter(|_| depth == 0) {
        surroundings.ran_again(began, done.is_ok());
    }
    done
}

/// Returns whether a [`recompute`](crate::recompute) region runs for the second time on this thread, in the backward pass. A layer
/// that changes state of its own in the forward pass, such as running statistics, leaves it as it is then.
///
/// ```
/// use std::cell::Cell;
///
/// use candle_headroom_nn::is_recomputing;
///
/// /// A layer of your own that counts its forward passes.
/// #[derive(Default)]
/// struct Counting(Cell<usize>);
///
/// impl Counting {
///     fn forward(&self) {
///         if !is_recomputing() {
///             self.0.set(self.0.get() + 1);
///         }
///     }
/// }
///
/// let layer = Counting::default();
/// layer.forward();
/// assert_eq!(layer.0.get(), 1);
/// ```
pub fn is_recomputing() -> bool {
    IS_AGAIN.get()
}

/// The bytes of tensors.
fn bytes_of(tensors: &[Tensor]) -> u64 {
    let bytes = |t: &Tensor| t.elem_count() * t.dtype().size_in_bytes();
    tensors.iter().map(bytes).sum::<usize>() as u64
}
