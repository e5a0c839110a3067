//! The ranges that a profiler sees: NVTX's own code, with a tool that is linked in.

use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_int, c_uint};

use candle_core::{DType, Device, Tensor, Var};
use candle_headroom::batch::{BatchProcessor, Fixed, Halving};
use candle_headroom::error::Phase;
use candle_headroom::testing::Faults;
use candle_headroom::timeline::NvtxRanges;
use candle_headroom::{AdaptiveTrainer, Error, Sgd};

type Slot = *mut *const ();
type Table = *mut Slot;

/// `NvtxExportTableCallbacks` of NVIDIA's nvtxTypes.h.
#[repr(C)]
struct Callbacks {
    size: usize,
    table: extern "C" fn(module: c_int, table: *mut Table, size: *mut c_uint) -> c_int,
}

const CALLBACKS: u32 = 1;
const CORE: c_int = 1;
const MARK: usize = 2;
const PUSH: usize = 9;
const POP: usize = 11;

thread_local! {
    static TOLD: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

fn note(text: String) {
    TOLD.with_borrow_mut(|told| told.push(text));
}

fn text(name: *const c_char) -> String {
    // SAFETY: NVTX hands on the caller's text, which ends with a zero.
    unsafe { CStr::from_ptr(name) }
        .to_string_lossy()
        .into_owned()
}

extern "C" fn mark(name: *const c_char) {
    note(format!("! {}", text(name)));
}

extern "C" fn push(name: *const c_char) -> c_int {
    note(format!("+ {}", text(name)));
    0
}

extern "C" fn pop() -> c_int {
    note("-".to_owned());
    0
}

extern "C" fn initialize(export: extern "C" fn(u32) -> *const Callbacks) -> c_int {
    let (mut table, mut size) = (std::ptr::null_mut(), 0);
    // SAFETY: NVTX calls this once with its own table, whose slots up to `size` it reads from then on.
    unsafe {
        ((*export(CALLBACKS)).table)(CORE, &mut table, &mut size);
        assert!(size as usize > POP);
        **table.add(MARK) = mark as *const ();
        **table.add(PUSH) = push as *const ();
        **table.add(POP) = pop as *const ();
    }
    1
}

/// Where NVTX looks for a tool that is linked in.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)] // the name is NVTX's
static InitializeInjectionNvtx2_fnptr: extern "C" fn(
    extern "C" fn(u32) -> *const Callbacks,
) -> c_int = initialize;

/// What was told on this thread since the last call.
fn told() -> Vec<String> {
    TOLD.take()
}

/// The paths of the ranges; checks that each of them ends.
fn paths(told: &[String]) -> Vec<String> {
    let (mut open, mut paths) = (Vec::new(), Vec::new());
    for line in told {
        match line.split_once(' ') {
            Some(("+", name)) => {
                open.push(name);
                paths.push(open.join("/"));
            }
            None => assert!(open.pop().is_some(), "one too many ends: {told:?}"),
            _ => {}
        }
    }
    assert_eq!(open, [""; 0], "{told:?}");
    paths
}

fn trainer(w: &Var) -> AdaptiveTrainer<Sgd> {
    let optimizer = Sgd::builder(vec![w.clone()])
        .learning_rate(0.1)
        .build()
        .unwrap();
    AdaptiveTrainer::builder(optimizer)
        .policy(Halving::builder().start(4).build().unwrap())
        .observer(NvtxRanges::new())
        .build()
        .unwrap()
}

#[test]
fn phases_are_ranges_within_their_batch() {
    let w = Var::new(&[1f32, 2.], &Device::Cpu).unwrap();
    let mut trainer = trainer(&w);
    let x = Tensor::ones((8, 2), DType::F32, &Device::Cpu).unwrap();
    let report = trainer.step(&x, |x, _| x.broadcast_mul(&w)?.sqr()?.mean_all());
    let report = report.unwrap();
    assert_eq!(report.sizes, [4, 4]);
    let told = told();
    let paths = paths(&told);
    let count = |path: &str| paths.iter().filter(|found| *found == path).count();
    let batch = paths[0].clone();
    assert!(batch.starts_with("training "), "{told:?}");
    assert_eq!(count(&batch), 1);
    for phase in ["forward", "backward", "accumulate"] {
        assert_eq!(count(&format!("{batch}/{phase}")), 2, "{phase}: {told:?}");
    }
    assert_eq!(count(&format!("{batch}/optimizer")), 1, "{told:?}");
    let marks = told.iter().filter_map(|line| line.strip_prefix("! "));
    let events = report.events.iter().map(ToString::to_string);
    assert!(marks.eq(events), "{told:?}");
}

#[test]
fn ranges_end_where_work_fails_and_marks_say_why() {
    let w = Var::new(&[1f32, 2.], &Device::Cpu).unwrap();
    let mut trainer = trainer(&w);
    let x = Tensor::ones((8, 2), DType::F32, &Device::Cpu).unwrap();
    let armed = Faults::in_phase(Phase::Backward, 0).arm();
    let report = trainer.step(&x, |x, _| x.broadcast_mul(&w)?.sqr()?.mean_all());
    assert_eq!(report.unwrap().retries, 1);
    drop(armed);
    let retried = told();
    paths(&retried);
    let marks: Vec<_> = retried
        .iter()
        .filter(|line| line.starts_with('!'))
        .collect();
    assert!(
        marks
            .iter()
            .any(|mark| mark.contains("out of device memory")),
        "{marks:?}"
    );
    assert!(marks.iter().any(|mark| mark.contains("4 → 2")), "{marks:?}");

    let failed = trainer.step(&x, |_, _| -> candle_core::Result<Tensor> {
        candle_core::bail!("not \0 today")
    });
    assert!(matches!(failed, Err(Error::Candle(_))), "{failed:?}");
    assert_eq!(
        paths(&told()).len(),
        3,
        "the batch, its transfer and its forward pass"
    );
}

#[test]
fn a_processor_shows_its_batches() {
    let x = Tensor::arange(0f32, 10., &Device::Cpu).unwrap();
    let mut processor = BatchProcessor::builder(Fixed::new(4).unwrap())
        .observer(NvtxRanges::new())
        .build();
    processor.process(&x, |_, _| Ok(())).unwrap();
    let paths = paths(&told());
    assert!(paths[0].starts_with("processing "), "{paths:?}");
    assert_eq!(paths.len(), 1 + 2 * 3, "{paths:?}");
}
