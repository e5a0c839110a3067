//! On the CPU there is nothing to copy.

use std::sync::{Arc, Mutex};

use candle_core::{Device, Tensor};
use candle_headroom::data::{Items, Loader};
use candle_headroom::error::BoxedError;

use super::{collate, held, numbers};

#[test]
fn on_the_cpu_batches_are_the_tensors_that_were_made() {
    for workers in [0, 2] {
        let made = Arc::new(Mutex::new(Vec::new()));
        let ids = Arc::clone(&made);
        let remember = move |samples: Vec<u32>| -> Result<Tensor, BoxedError> {
            let tensor = collate(samples)?;
            ids.lock().unwrap().push(tensor.id());
            Ok(tensor)
        };
        let builder = Loader::builder(Items((0..10).collect::<Vec<u32>>()), remember).batch(3);
        let loader = builder
            .workers(workers)
            .device(&Device::Cpu)
            .build()
            .unwrap();
        let batches: Vec<_> = loader.map(|batch| batch.unwrap()).collect();
        let made = made.lock().unwrap();
        assert_eq!(batches.len(), 4);
        for batch in &batches {
            assert!(made.contains(&batch.id()), "a copy");
        }
    }
}

#[test]
fn the_batches_are_the_same_as_without_a_device() {
    let batches =
        |loader: Loader<Tensor>| -> Vec<_> { loader.map(|batch| held(&batch.unwrap())).collect() };
    let builder = || numbers(50).batch_cost(20).shuffle(3).epochs(2).workers(2);
    let with = builder().device(&Device::Cpu).build().unwrap();
    assert_eq!(batches(with), batches(builder().build().unwrap()));
}
