//! Inference with recovery: in order, each sample once, bounded.

use std::cell::Cell;

use candle_core::{DType, Device, Tensor};
use candle_headroom::batch::{BatchProcessor, Event, Fixed, Halving, Samples};
use candle_headroom::error::{Cause, Resource};
use candle_headroom::testing::{Faults, illegal_address, out_of_memory};
use candle_headroom::{Error, ResourceExhausted, process_batches};

use crate::support::{Mlp, flat};

#[test]
fn exhaustion_at_every_point_gives_the_same_results() {
    let model = Mlp::new(DType::F32);
    let (x, _) = Mlp::data(11, DType::F32);
    let run = || process_batches(&x, 4, |chunk| Ok(flat(&model.forward(&chunk)?)));
    let armed = Faults::at(usize::MAX).arm();
    let expected = run().unwrap().concat();
    let points = armed.points();
    drop(armed);
    assert_eq!(points, 6); // transfer and forward of 3 chunks
    assert_eq!(expected, flat(&model.forward(&x).unwrap()));
    for point in 0..points {
        for times in 1..=2 {
            let armed = Faults::at(point).times(times).arm();
            assert_eq!(run().unwrap().concat(), expected, "point {point}");
            assert!(armed.fired() >= 1);
        }
    }
}

#[test]
fn other_errors_and_faults_come_back_at_once() {
    let x = Tensor::arange(0f32, 8., &Device::Cpu).unwrap();
    let calls = Cell::new(0);
    let error = process_batches(&x, 4, |_| -> candle_core::Result<()> {
        calls.set(calls.get() + 1);
        candle_core::bail!("a bug, not out of memory")
    });
    assert!(matches!(error, Err(Error::Candle(_))));
    assert_eq!(calls.get(), 1);
    let error = process_batches(&x, 4, |_| -> candle_core::Result<()> {
        calls.set(calls.get() + 1);
        Err(illegal_address())
    });
    assert!(matches!(error, Err(Error::DeviceFault(_))));
    assert_eq!(calls.get(), 2);
}

#[test]
fn the_size_is_remembered_and_reported() {
    let samples: Vec<u32> = (0..64).collect();
    let mut processor = BatchProcessor::builder(Halving::default()).build();
    let mut run = |room: usize| {
        let processed = processor.process(&Samples(&samples), |chunk, micro| {
            assert_eq!(chunk.len(), micro.samples.len());
            if chunk.len() > room {
                return Err(out_of_memory());
            }
            Ok(chunk.iter().sum::<u32>())
        });
        processed.unwrap()
    };
    let first = run(20);
    assert_eq!((first.sizes, first.retries), (vec![16; 4], 2));
    assert!(matches!(first.events[0], Event::Retried { to: 32, .. }));
    let second = run(20);
    assert_eq!((second.sizes, second.retries), (vec![16; 4], 0));
    assert_eq!(second.results.iter().sum::<u32>(), 63 * 32);
}

#[test]
fn bad_input_is_named_before_anything_runs() {
    let never = |_: Tensor| -> candle_core::Result<()> { panic!("called") };
    let x = Tensor::arange(0f32, 4., &Device::Cpu).unwrap();
    let error = process_batches(&x, 0, never).unwrap_err();
    assert!(
        error.is_policy() && error.to_string().ends_with("must be at least 1, got 0"),
        "{error}"
    );
    assert!(Fixed::new(0).is_err());
    let empty = x.narrow(0, 0, 0).unwrap();
    // Not an error: a rank may have no share of the samples.
    assert_eq!(process_batches(&empty, 4, never).unwrap(), []);
    let scalar = Tensor::zeros((), DType::F32, &Device::Cpu).unwrap();
    assert!(process_batches(&scalar, 4, never).unwrap_err().is_batch());
}

/// If a neighbour takes the memory, a single sample that fails is not called too large.
#[test]
fn a_neighbours_pressure_is_not_held_against_a_single_sample() {
    let x = Tensor::zeros(1, DType::F32, &Device::Cpu).unwrap();
    let error = process_batches(&x, 1, |_| -> candle_core::Result<()> {
        Err(ResourceExhausted::new(
            Resource::DeviceMemory,
            Cause::Neighbour,
        ))?
    });
    let error = error.unwrap_err();
    assert_eq!(
        error.resource_exhausted().unwrap().cause,
        Cause::Neighbour,
        "{error}"
    );
}
