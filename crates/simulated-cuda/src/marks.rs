//! What a program is doing, as it says itself. A program that knows this driver looks up these functions, and calls them around pieces of work
//! and phases, which nest on each thread, and whenever it enters another layer. Allocations are then counted by place.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{CStr, c_char};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

/// The kinds of what can be entered.
const WORK: u32 = 0;
const PHASE: u32 = 1;

/// A piece of work: a micro-batch, or an update.
#[derive(Debug)]
pub struct Work {
    pub serial: u64,
    pub name: String,
    /// 0 for an update.
    pub samples: u64,
    /// Bytes that it could do without, as the program says.
    pub could_save: AtomicU64,
}

/// A phase, and the layers that the program says it is in. Both are empty outside of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Place {
    pub phase: String,
    pub layers: String,
}

/// Where a thread is: its piece of work, and the number of its place.
#[derive(Clone, Debug, Default)]
pub struct Here {
    pub work: Option<Arc<Work>>,
    pub place: usize,
}

/// What a thread has told.
#[derive(Default)]
struct Told {
    /// The works and phases that it has entered, outermost first.
    entered: Vec<(Option<Arc<Work>>, Arc<str>)>,
    layers: String,
    here: Here,
}

impl Told {
    /// Finds the number of the present place.
    fn settle(&mut self) {
        let (work, phase) = self.entered.last().cloned().unwrap_or_default();
        let place = Place {
            phase: phase.to_string(),
            layers: self.layers.clone(),
        };
        let place = number(place);
        self.here = Here { work, place };
    }
}

/// All places that were entered, by number. 0 is outside of all.
struct Places {
    numbers: HashMap<Place, usize>,
    all: Vec<Place>,
}

static PLACES: LazyLock<Mutex<Places>> = LazyLock::new(|| {
    let outside = Place::default();
    Mutex::new(Places {
        numbers: HashMap::from([(outside.clone(), 0)]),
        all: vec![outside],
    })
});

thread_local! {
    static TOLD: RefCell<Told> = RefCell::default();
}

/// Where this thread is.
pub fn here() -> Here {
    // A destructor of another thread-local value may still free memory.
    TOLD.try_with(|told| told.borrow().here.clone())
        .unwrap_or_default()
}

/// The phase that this thread is in; empty outside of all.
pub fn phase() -> Arc<str> {
    let phase = TOLD.try_with(|told| Some(told.borrow().entered.last()?.1.clone()));
    phase.ok().flatten().unwrap_or_default()
}

/// All places, by number.
pub fn places() -> Vec<Place> {
    let places = PLACES.lock().unwrap_or_else(PoisonError::into_inner);
    places.all.clone()
}

fn number(place: Place) -> usize {
    let mut places = PLACES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(&number) = places.numbers.get(&place) {
        return number;
    }
    let number = places.all.len();
    places.all.push(place.clone());
    places.numbers.insert(place, number);
    number
}

/// Changes what this thread has told; nothing while the thread ends.
fn change(change: impl FnOnce(&mut Told)) {
    _ = TOLD.try_with(|told| change(&mut told.borrow_mut()));
}

/// # Safety
/// `text` is null or a text with a final zero byte.
unsafe fn text(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: not null, and by contract a text with a final zero byte.
    unsafe { CStr::from_ptr(text) }
        .to_string_lossy()
        .into_owned()
}

/// Enters a piece of work of so many samples (kind 0, with 0 samples an update) or a phase (1) on this thread.
///
/// # Safety
/// `name` is null or a text with a final zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn simulated_cuda_enter(kind: u32, name: *const c_char, samples: u64) {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    // SAFETY: by contract.
    let name = unsafe { text(name) };
    change(|told| {
        let mut entered = told.entered.last().cloned().unwrap_or_default();
        match kind {
            WORK => {
                let serial = NEXT.fetch_add(1, Relaxed);
                entered = (
                    Some(Arc::new(Work {
                        serial,
                        name,
                        samples,
                        could_save: AtomicU64::new(0),
                    })),
                    "".into(),
                );
            }
            PHASE => entered.1 = name.into(),
            _ => {}
        }
        told.entered.push(entered);
        told.settle();
    });
}

/// Leaves what this thread entered last.
#[unsafe(no_mangle)]
pub extern "C" fn simulated_cuda_leave() {
    change(|told| {
        told.entered.pop();
        told.settle();
    });
}

/// Says how many bytes the piece of work in progress on this thread could do without if marked regions were recomputed.
#[unsafe(no_mangle)]
pub extern "C" fn simulated_cuda_could_save(bytes: u64) {
    change(|told| {
        if let Some(work) = &told.here.work {
            work.could_save.store(bytes, Relaxed);
        }
    });
}

/// Says in which layers this thread is, such as `layers.17.mlp`.
///
/// # Safety
/// `path` is null or a text with a final zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn simulated_cuda_layers(path: *const c_char) {
    // SAFETY: by contract.
    let layers = unsafe { text(path) };
    change(|told| {
        told.layers = layers;
        told.settle();
    });
}
