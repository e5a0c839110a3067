//! Training steps, recorded.

use candle_core::{DType, Device, Tensor, Var};
use candle_headroom::layers::{LayerMemory, SnapshotRecorder};
use candle_headroom::{AdaptiveTrainer, ByteSize, DeviceMemory};
use tracing::trace_span;
use tracing_subscriber::layer::SubscriberExt;

use super::check::check;
use crate::language::{by_sgd, language, text};
use crate::support::{alone, sgd};

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
    // Nothing tells of phases or spans.
    let named: Vec<_> = checked
        .paths
        .keys()
        .filter(|path| !path.is_empty())
        .collect();
    assert_eq!(
        (named.len(), checked.by_category.len()),
        (0, 1),
        "{named:?}"
    );
    Ok(())
}

/// With a `LayerMemory`, frames are the spans and the phase, and the phase is the category.
#[test]
fn blocks_name_their_layers() -> candle_headroom::Result<()> {
    let _alone = alone();
    const MIB: usize = 1 << 20;
    let memory = DeviceMemory::host().open()?;
    let layers = LayerMemory::new(&memory);
    let subscriber = tracing_subscriber::registry().with(layers.layer());
    let _subscriber = tracing::subscriber::set_default(subscriber);
    let weight = Var::zeros(MIB / 4, DType::F32, &Device::Cpu)?;
    let mut trainer = AdaptiveTrainer::builder(sgd(std::slice::from_ref(&weight), 0.1))
        .memory(&memory)
        .build()?;
    let x = Tensor::ones((1, 1), DType::F32, &Device::Cpu)?;
    let block = |bytes: usize| {
        let _entered = trace_span!("block").entered();
        Tensor::zeros(bytes / 4, DType::F32, &Device::Cpu)
    };
    let recorder = SnapshotRecorder::builder()
        .min_bytes(ByteSize(MIB as u64))
        .start()?;
    let outside = block(8 * MIB)?;
    trainer.step(&x, |_, _| {
        let _entered = trace_span!("model").entered();
        let first = block(2 * MIB)?;
        let second = block(3 * MIB)?;
        let product = weight.affine(2., 0.)?.sum_all()?; // 1 MiB
        product + (first.sum_all()? + second.sum_all()?)?
    })?;
    let snapshot = recorder.stop();
    drop(outside);
    let checked = check(&snapshot);
    let bytes = |path: &str| checked.paths.get(path).map(|bytes| *bytes as usize);
    let found = [
        "block",
        "forward/model",
        "forward/model/block.0",
        "forward/model/block.1",
    ]
    .map(bytes);
    assert_eq!(
        found,
        [8, 1, 2, 3].map(|mib| Some(mib * MIB)),
        "{:?}",
        checked.paths
    );
    let of = |category: &str| {
        checked
            .by_category
            .get(category)
            .map(|bytes| *bytes as usize)
    };
    assert_eq!(
        (of("forward"), of("unknown")),
        (Some(6 * MIB), Some(8 * MIB))
    );
    // At least the gradient of the weight.
    assert!(of("backward") >= Some(MIB), "{:?}", checked.by_category);
    // The trainer's sum of gradients, and the tensor above.
    assert_eq!(checked.live, [MIB as u64, 8 * MIB as u64]);
    Ok(())
}
