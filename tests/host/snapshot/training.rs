//! A training step, recorded.

use candle_headroom::layers::SnapshotRecorder;
use candle_headroom::{ByteSize, DeviceMemory};

use super::check::check;
use crate::language::{by_sgd, language, text};
use crate::support::alone;

#[test]
fn a_step_is_recorded() -> candle_headroom::Result<()> {
    let _alone = alone();
    let memory = DeviceMemory::host().open()?;
    let (model, vars) = language();
    let mut trainer = by_sgd(&vars, &memory);
    let batch = text(8, 32);
    let mut step = || trainer.step(&batch, |(x, y), _| model.loss(&x, &y));
    step()?;
    let recorder = SnapshotRecorder::builder().min_bytes(ByteSize(1)).start()?;
    let scope = memory.peak_scope();
    let start = scope.start().unwrap();
    let report = step()?;
    let (peak, end) = (scope.peak().unwrap(), memory.in_use().unwrap());
    let snapshot = recorder.stop();
    assert!(report.loss.read()?.is_finite());
    let checked = check(&snapshot);
    assert_eq!(snapshot.dropped(), 0);
    // A gradient for each parameter of 32 × 1024 numbers and more, and activations.
    assert!(checked.counts["alloc"] > 500, "{:?}", checked.counts);
    let rise = checked.peak - checked.first;
    let within = candle_headroom::memory::PEAK_ERROR;
    assert!(
        rise.abs_diff(peak - start) <= within,
        "{rise} of {}",
        peak - start
    );
    let (left, expected) = (checked.last.abs_diff(checked.first), end.abs_diff(start));
    assert!(left.abs_diff(expected) <= super::NOISE, "{left} {expected}");
    Ok(())
}
