use candle_core::{DType, Device, Result, Tensor, Var};
use candle_headroom::batch::Fixed;
use candle_headroom::memory::Limit;
use candle_headroom::nn::loss::{LinearCrossEntropy, linear_cross_entropy};
use candle_headroom::{AdaptiveTrainer, DeviceMemory, Sgd};

use super::{NOISE, assert_kept, var};
use crate::support::alone;

const TOKENS: usize = 1024;
const WIDTH: usize = 64;
const CLASSES: usize = 4096;
/// Rows of a chunk of logits.
const ROWS: usize = 16;

fn loss(hidden: &Tensor, weight: &Tensor) -> Result<Tensor> {
    let targets = Tensor::zeros(TOKENS, DType::U32, &Device::Cpu)?;
    let options = LinearCrossEntropy::default().chunk_rows(ROWS);
    linear_cross_entropy(hidden, weight, &targets, &options)
}

fn inputs() -> Result<([Var; 2], [usize; 2])> {
    let ((hidden, of_hidden), (weight, of_weight)) =
        (var(&[TOKENS, WIDTH])?, var(&[CLASSES, WIDTH])?);
    Ok(([hidden, weight], [of_hidden, of_weight]))
}

#[test]
fn it_keeps_the_gradients_that_are_asked_for() -> Result<()> {
    let _alone = alone();
    let ([hidden, weight], [of_hidden, of_weight]) = inputs()?;
    let (states, frozen) = (hidden.detach(), weight.detach());
    // Products allocate buffers once.
    loss(&hidden, &weight)?;
    // The targets, as i64.
    let targets = TOKENS * DType::I64.size_in_bytes();
    let with = |gradients: usize| targets + gradients;
    assert_kept("both", with(of_hidden + of_weight), || {
        loss(&hidden, &weight)
    });
    assert_kept("a frozen weight", with(of_hidden), || {
        loss(&hidden, &frozen)
    });
    assert_kept("frozen hidden states", with(of_weight), || {
        loss(&states, &weight)
    });
    assert_kept("nothing", 0, || loss(&states, &frozen));
    Ok(())
}

/// The highest use above that before.
fn peak(work: impl FnOnce() -> Result<()>) -> Result<u64> {
    let memory = DeviceMemory::host()
        .open()
        .expect("an allocator that counts");
    let scope = memory.peak_scope();
    work()?;
    let peak = scope.peak().zip(scope.start());
    Ok(peak.map(|(peak, start)| peak - start).expect("a peak"))
}

#[test]
fn logits_never_exist_at_once() -> Result<()> {
    let _alone = alone();
    let ([hidden, weight], [of_hidden, of_weight]) = inputs()?;
    let (states, frozen) = (hidden.detach(), weight.detach());
    // Products allocate buffers once.
    loss(&hidden, &weight)?.backward()?;
    let chunk = ROWS * CLASSES * DType::F32.size_in_bytes();
    // A product copies parts of its operands: at most half of a chunk, and some of the weight.
    let copies = chunk / 2 + 1024 * 1024;
    let at_most = |name: &str, found: u64, bytes: usize| {
        let most = bytes as u64 + NOISE;
        assert!(found <= most, "{name}: {found} bytes, more than {most}");
    };
    let found = peak(|| loss(&states, &frozen).map(drop))?;
    at_most("nothing to differentiate", found, chunk + copies);
    let found = peak(|| loss(&hidden, &frozen).map(drop))?;
    at_most("a frozen weight", found, of_hidden + chunk + copies);
    let found = peak(|| loss(&hidden, &weight).map(drop))?;
    at_most("forward", found, of_hidden + of_weight + chunk + copies);
    // candle adds each gradient to zeros: of the weight's gradient there are three.
    let found = peak(|| loss(&hidden, &weight)?.backward().map(drop))?;
    at_most("backward", found, 2 * of_hidden + 3 * of_weight);
    Ok(())
}

/// Where the trainer's memory has less room than the chunk of the default takes.
#[test]
fn a_chunk_fits_the_trainers_room() -> candle_headroom::Result<()> {
    let _alone = alone();
    // 64 rows by default: 4 MiB.
    let (tokens, classes) = (256, 16384);
    let ((hidden, of_hidden), (weight, _)) = (var(&[tokens, WIDTH])?, var(&[classes, WIDTH])?);
    let frozen = weight.detach();
    let targets = Tensor::zeros(tokens, DType::U32, &Device::Cpu)?;
    let memory = DeviceMemory::host().open()?;
    let optimizer = Sgd::builder(vec![hidden.clone()]).build()?;
    let mut trainer = AdaptiveTrainer::builder(optimizer)
        .policy(Fixed::whole_batch())
        .memory(&memory)
        .build()?;
    let mut forward = || -> candle_headroom::Result<u64> {
        let mut of_forward = 0;
        trainer.step(&targets, |targets, _| {
            let options = LinearCrossEntropy::default();
            let mut loss = None;
            of_forward = peak(|| {
                loss = Some(linear_cross_entropy(&hidden, &frozen, &targets, &options)?);
                Ok(())
            })?;
            Ok(loss.expect("a loss"))
        })?;
        Ok(of_forward)
    };
    forward()?;
    let plenty = forward()?;
    let chunk = 64 * classes * DType::F32.size_in_bytes();
    assert!(plenty >= (of_hidden + chunk) as u64, "{plenty} bytes");
    let limit = memory.in_use().unwrap_or_default() + 3 * chunk as u64 / 4;
    memory.set_limit(limit)?;
    let tight = forward();
    memory.set_limit(Limit::Unlimited)?;
    // Half of the room, and what products copy.
    let (tight, most) = (tight?, 5 * chunk as u64 / 8);
    assert!(tight <= most, "{tight} bytes, more than {most}");
    Ok(())
}
