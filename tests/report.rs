//! The long form of an exhaustion, as a user reads it.

use candle_core::{DType, Device, DeviceLocation, Tensor, Var};
use candle_headroom::testing::Faults;
use candle_headroom::{
    AdamW, AdaptiveTrainer, Cause, Fixed, Holding, Phase, Remedy, Resource, ResourceExhausted,
};

#[test]
fn all_that_is_known_stands_below_each_other() {
    let mut exhausted = ResourceExhausted::new(Resource::DeviceMemory, Cause::Neighbour);
    exhausted.device = Some(DeviceLocation::Cuda { gpu_id: 0 });
    exhausted.phase = Some(Phase::Backward);
    (exhausted.micro_batch, exhausted.samples) = (Some(16), Some(32..48));
    let bytes = &mut exhausted.bytes;
    (bytes.in_use, bytes.peak, bytes.reserved) = (Some(5 << 30), Some(8 << 30), Some(9 << 30));
    (bytes.free, bytes.total) = (Some(1 << 30), Some(40 << 30));
    exhausted.held = vec![
        Holding::new("parameters", 1 << 30),
        Holding::new("optimizer state", 2 << 30),
    ];
    exhausted.remedies = vec![
        Remedy::new("a micro-batch of 8", Some(1536 << 20)),
        Remedy::new("shorter samples", None),
    ];
    let expected = "\
out of device memory in backward of a micro-batch of 16 (samples 32..48): another process holds the memory (8.0 GiB used)
  device                          Cuda { gpu_id: 0 }
  highest use                       8.0 GiB   20 %
    parameters                      1.0 GiB   12 %
    optimizer state                 2.0 GiB   25 %
    activations and all else        5.0 GiB   62 %
    held by the pool, unused        1.0 GiB
  in use after it was dropped       5.0 GiB
  held by the pool in all           9.0 GiB
  not the pool's (others, CUDA)    30.0 GiB
  free on the device                1.0 GiB
  capacity                         40.0 GiB
  what would help
    1. a micro-batch of 8 (saves about 1.5 GiB)
    2. shorter samples";
    assert_eq!(format!("{exhausted:#}"), expected);
    assert_eq!(format!("{exhausted:?}"), expected);
    assert_eq!(exhausted.to_string().lines().count(), 1);
}

/// A trainer tells what the model itself holds: 8 parameters of 4 bytes, as much in gradients, twice that in moments.
#[test]
fn a_trainer_knows_what_is_its_own() {
    let w = Var::from_tensor(&Tensor::ones(8, DType::F32, &Device::Cpu).unwrap()).unwrap();
    let optimizer = AdamW::new_lr(vec![w.clone()], 0.1).unwrap();
    let builder = AdaptiveTrainer::builder(vec![w.clone()], optimizer);
    let mut trainer = builder.policy(Fixed::new(2).unwrap()).build().unwrap();
    let x = Tensor::ones((4, 8), DType::F32, &Device::Cpu).unwrap();
    // The second micro-batch, when there are sums already.
    let _armed = Faults::in_phase(Phase::Backward, 1).times(9).arm();
    let failed = trainer.step(&x, |x, _| x.broadcast_mul(&w)?.sqr()?.mean_all());
    let error = failed.unwrap_err();
    let exhausted = error.resource_exhausted().unwrap();
    let held: Vec<_> = exhausted
        .held
        .iter()
        .map(|held| (held.what, held.bytes))
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
