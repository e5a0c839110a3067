//! The long form of an exhaustion, as a user reads it.

use candle_core::{DType, Device, Tensor, Var};
use candle_headroom::batch::Fixed;
use candle_headroom::error::{Cause, Holding, Neighbour, Phase, Remedy, Resource};
use candle_headroom::testing::Faults;
use candle_headroom::{AdamW, AdaptiveTrainer, ByteSize, DeviceMemory, ResourceExhausted};

use crate::support::alone;

#[test]
fn all_that_is_known_stands_below_each_other() {
    let _alone = alone();
    let mut exhausted = ResourceExhausted::new(Resource::DeviceMemory, Cause::Neighbour);
    exhausted.device = Some("cuda:0".to_owned());
    exhausted.phase = Some(Phase::Backward);
    (exhausted.micro_batch, exhausted.samples) = (Some(16), Some(32..48));
    let bytes = &mut exhausted.bytes;
    (bytes.in_use, bytes.peak, bytes.reserved) = (Some(5 << 30), Some(8 << 30), Some(9 << 30));
    (bytes.free, bytes.total) = (Some(1 << 30), Some(40 << 30));
    exhausted.held = vec![
        Holding::new("parameters", 1 << 30),
        Holding::new("optimizer state", 2 << 30),
    ];
    let neighbour = |process, name: Option<&str>, bytes| {
        Neighbour::new(process, name.map(str::to_owned), bytes)
    };
    exhausted.neighbours = vec![
        neighbour(4711, Some("python3"), Some(25 << 30)),
        neighbour(4712, None, None),
    ];
    exhausted.remedies = vec![
        Remedy::new("a micro-batch of 8", Some(1536 << 20)),
        Remedy::new("shorter samples", None),
    ];
    let expected = "\
out of device memory in backward of a micro-batch of 16 (samples 32..48): another process holds the memory (8.0 GiB used)
  device                          cuda:0
  highest use                       8.0 GiB   20 %
    parameters                      1.0 GiB   12 %
    optimizer state                 2.0 GiB   25 %
    activations and all else        5.0 GiB   62 %
    held by the pool, unused        1.0 GiB
  in use after it was dropped       5.0 GiB
  held by the pool in all           9.0 GiB
  not the pool's (others, CUDA)    30.0 GiB
    python3 (4711)                 25.0 GiB
    process 4712                        n/a
  free on the device                1.0 GiB
  capacity                         40.0 GiB
  what would help
    1. a micro-batch of 8 (saves about 1.5 GiB)
    2. shorter samples";
    assert_eq!(format!("{exhausted:#}"), expected);
    assert_eq!(format!("{exhausted:?}"), expected);
    assert_eq!(exhausted.to_string().lines().count(), 1);

    // If the policy has a model, activations have their own line. Of many neighbours, the largest are named.
    let activations = Holding::new(Holding::ACTIVATIONS, 4 << 30);
    exhausted.held.push(activations);
    exhausted.expected_peak = Some(10 << 30);
    exhausted.neighbours = (0..9)
        .map(|process| neighbour(process, None, Some(1)))
        .collect();
    let text = format!("{exhausted:#}");
    for line in [
        "\n  would have come to (by the fit)  10.0 GiB   25 %\n",
        "\n    activations (by the fit)        4.0 GiB   50 %\n",
        "\n    all else                        1.0 GiB   12 %\n",
        "\n    process 4                           1 B\n    and 4 more\n",
    ] {
        assert!(text.contains(line), "{line} in {text}");
    }
}

/// The trainer names the memory of parameters (8 of 4 bytes), gradients (as much) and moments (twice as much).
#[test]
fn a_trainer_knows_what_is_its_own() {
    let _alone = alone();
    let w = Var::from_tensor(&Tensor::ones(8, DType::F32, &Device::Cpu).unwrap()).unwrap();
    let optimizer = AdamW::builder(vec![w.clone()])
        .learning_rate(0.1)
        .build()
        .unwrap();
    let builder = AdaptiveTrainer::builder(optimizer);
    let mut trainer = builder.policy(Fixed::new(2).unwrap()).build().unwrap();
    let x = Tensor::ones((4, 8), DType::F32, &Device::Cpu).unwrap();
    // In the second micro-batch, when gradients have been accumulated.
    let _armed = Faults::in_phase(Phase::Backward, 1).times(9).arm();
    let failed = trainer.step(&x, |x, _| x.broadcast_mul(&w)?.sqr()?.mean_all());
    let error = failed.unwrap_err();
    let exhausted = error.resource_exhausted().unwrap();
    let held: Vec<_> = exhausted
        .held
        .iter()
        .map(|held| (&*held.what, held.bytes))
        .collect();
    assert_eq!(
        held,
        [
            ("parameters", 32),
            ("accumulated gradients", 32),
            ("optimizer state", 64)
        ]
    );
}

/// After a few steps the policy's model predicts the peak of the failed micro-batch, and its activations.
#[test]
fn activations_are_told_by_the_fit() {
    let _alone = alone();
    const WIDTH: usize = 64 << 10;
    let memory = DeviceMemory::host().limit(ByteSize::gib(1)).open().unwrap();
    let w = Var::from_tensor(&Tensor::ones(WIDTH, DType::F32, &Device::Cpu).unwrap()).unwrap();
    let optimizer = AdamW::builder(vec![w.clone()])
        .learning_rate(0.1)
        .build()
        .unwrap();
    let builder = AdaptiveTrainer::builder(optimizer);
    let mut trainer = builder.memory(&memory).build().unwrap();
    let x = Tensor::ones((64, WIDTH), DType::F32, &Device::Cpu).unwrap();
    let mut step = |x: &Tensor| trainer.step(x, |x, _| x.broadcast_mul(&w)?.sqr()?.mean_all());
    for samples in [8, 16, 32, 64] {
        step(&x.narrow(0, 0, samples).unwrap()).unwrap();
    }
    let in_use = memory.in_use().unwrap();
    memory.set_limit(ByteSize::b(in_use + 4096)).unwrap();
    let error = step(&x.narrow(0, 0, 1).unwrap()).unwrap_err();
    let exhausted = error.resource_exhausted().unwrap();
    // The caller's own batches are in the way: without them the sample would fit.
    assert_eq!(exhausted.cause, Cause::Limit, "{exhausted:#}");
    let expected = exhausted.expected_peak.unwrap();
    assert!(expected > exhausted.bytes.limit.unwrap(), "{exhausted:#}");
    let held = |what| {
        let held = exhausted.held.iter().find(|held| held.what == what);
        held.map(|held| held.bytes)
    };
    assert_eq!(held("parameters"), Some(4 * WIDTH as u64));
    assert!(held(Holding::OTHER).unwrap() >= 64 * 4 * WIDTH as u64);
    let text = error.to_string();
    assert!(text.contains("the limit is reached"), "{text}");
    assert!(
        text.contains("; freeing other memory of this process, such as data, the batch itself"),
        "{text}"
    );
    let activations = held(Holding::ACTIVATIONS).unwrap();
    let each = 4 * WIDTH as u64;
    assert!((each / 2..each * 8).contains(&activations), "{exhausted:#}");
    let sum: u64 = exhausted.held.iter().map(|held| held.bytes).sum();
    assert!(sum <= exhausted.bytes.peak.unwrap(), "{exhausted:#}");
    println!("{exhausted:#}");
}
