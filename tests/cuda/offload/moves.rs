//! What moves, what stays, and what is freed.

use candle_core::{Device, Result, Tensor};
use candle_headroom::batch::{Fixed, Recompute};
use candle_headroom::nn::{Offload, recompute};
use candle_headroom::{AdaptiveTrainer, DeviceMemory, Sgd};

use super::{BLOCKS, INPUT, Model, bits, differing, held};
use crate::gpu::{MIB, simulated};

const ORDINAL: usize = 6;

#[test]
fn the_same_values_with_less_on_the_device() {
    let Some((_gpu, simulator)) = simulated(ORDINAL) else {
        return;
    };
    let memory = DeviceMemory::cuda(ORDINAL).open().unwrap();
    let model = Model::new(memory.device()).unwrap();
    let expected = model.values(&model.loss().unwrap()).unwrap();
    simulator.reset_counters();
    let before = held(simulator);
    let kept = |loss: &Tensor| {
        // The memory is freed in the order of the stream, at once by the simulator.
        loss.device().synchronize().unwrap();
        held(simulator)[0] - before[0]
    };
    let plain = kept(&model.loss().unwrap());
    let offload = Offload::new(64 * MIB);
    let (mut off, mut moved) = (0, 0);
    for late in [false, true, false] {
        simulator.set_late(late);
        let loss = offload.within(|| model.loss()).unwrap();
        moved = kept(&loss);
        // The inputs of all blocks, and again in the second pass over the same graph.
        for _ in 0..2 {
            off += differing(&model.values(&loss).unwrap(), &expected);
            assert_eq!(kept(&loss), moved, "what was fetched is freed again");
        }
    }
    simulator.set_late(false);
    let stats = offload.stats();
    assert_eq!(stats.moved, 3 * BLOCKS as u64);
    assert_eq!((stats.over_limit, stats.refused), (0, 0));
    assert_eq!(
        stats.pinned,
        BLOCKS as u64 * INPUT,
        "used again by each step"
    );
    drop(offload);
    assert_eq!(held(simulator), before);
    let hazards = simulator.counters().hazards;
    println!("figure: offload/bits_differing = {off} bits");
    println!("figure: offload/hazards = {hazards} hazards");
    let ratio = moved as f64 / plain as f64;
    println!("figure: offload/bytes_kept_vs_recompute = {ratio:.2} x");
    assert_eq!((off, hazards), (0, 0));
    assert!(ratio <= 0.3, "{moved} of {plain} bytes");
}

/// Nothing waits for a copy but the device.
#[test]
fn the_host_does_not_wait() {
    let Some((_gpu, simulator)) = simulated(ORDINAL) else {
        return;
    };
    let memory = DeviceMemory::cuda(ORDINAL).open().unwrap();
    let model = Model::new(memory.device()).unwrap();
    let offload = Offload::new(64 * MIB);
    // Compared on a GPU are the first regions of a thread only, for which the host waits.
    for _ in 0..2 {
        model.offloaded(&offload).unwrap();
    }
    let copies = |most| {
        let offload = Offload::new(most);
        simulator.reset_counters();
        let loss = offload.within(|| model.loss()).unwrap();
        loss.backward().unwrap();
        let counters = simulator.counters();
        assert_eq!(counters.synchronizations, 0);
        counters.copies
    };
    let plain = copies(0);
    // There and back. What comes back is a variable at once, where an input that stayed is copied into one.
    assert_eq!(copies(64 * MIB) - plain, BLOCKS as u64);
}

#[test]
fn what_exceeds_the_limit_stays() {
    let Some((_gpu, simulator)) = simulated(ORDINAL) else {
        return;
    };
    let memory = DeviceMemory::cuda(ORDINAL).open().unwrap();
    let model = Model::new(memory.device()).unwrap();
    let expected = model.values(&model.loss().unwrap()).unwrap();
    simulator.reset_counters();
    for blocks in [0, 1, 3] {
        let offload = Offload::new(blocks * INPUT + INPUT / 2);
        assert_eq!(differing(&model.offloaded(&offload).unwrap(), &expected), 0);
        let stats = offload.stats();
        let over = BLOCKS as u64 - blocks;
        assert_eq!((stats.moved, stats.over_limit), (blocks, over));
        assert_eq!(stats.pinned, blocks * INPUT);
    }
    // A host that refuses is no failure either.
    let offload = Offload::new(64 * MIB);
    simulator.fail_host_allocation(3, 2);
    assert_eq!(differing(&model.offloaded(&offload).unwrap(), &expected), 0);
    simulator.disarm();
    let stats = offload.stats();
    assert_eq!((stats.moved, stats.refused), (BLOCKS as u64 - 2, 2));
    assert_eq!(simulator.counters().hazards, 0);
}

/// Blocks of pinned memory that are too small make room for larger ones.
#[test]
fn other_sizes_find_place() {
    let Some((_gpu, simulator)) = simulated(ORDINAL) else {
        return;
    };
    let memory = DeviceMemory::cuda(ORDINAL).open().unwrap();
    let mut model = Model::new(memory.device()).unwrap();
    let offload = Offload::new(BLOCKS as u64 * INPUT);
    simulator.reset_counters();
    for times in [1, 2, 1] {
        let all: Vec<_> = (0..times).map(|_| &model.tokens).collect();
        model.tokens = Tensor::cat(&all, 0).unwrap();
        let expected = model.values(&model.loss().unwrap()).unwrap();
        assert_eq!(differing(&model.offloaded(&offload).unwrap(), &expected), 0);
        assert!(offload.stats().pinned <= BLOCKS as u64 * INPUT);
    }
    // Eight, then four of two each, twice.
    assert_eq!(offload.stats().moved, 8 + 4 + 4);
    assert_eq!(simulator.counters().hazards, 0);
}

/// Inputs that the program keeps too, two regions with the same one, regions within regions, and what is no output of a region.
#[test]
fn inputs_that_are_used_elsewhere_too() {
    let Some((_gpu, simulator)) = simulated(ORDINAL) else {
        return;
    };
    let memory = DeviceMemory::cuda(ORDINAL).open().unwrap();
    let model = Model::new(memory.device()).unwrap();
    let w = &model.blocks[0][0];
    let loss = |x: &Tensor| -> Result<Tensor> {
        let x = recompute(x, |x| x * 2.)?;
        let y = recompute(&x, |x| recompute(x, |x| x.sqr())?.sqrt())?;
        let z = recompute((&x, &y, &x), |(x, y, z)| (x * y)? + z)?;
        let sum = (&x + &z)?;
        recompute((&sum, &z.t()?), |(sum, z)| sum.mul(&z.t()?)?.mean_all())
    };
    let x = w.as_tensor().reshape((8, 8)).unwrap();
    let run = |offload: &Offload| {
        let loss = offload.within(|| loss(&x))?;
        Ok::<_, candle_core::Error>([bits(&loss)?, bits(loss.backward()?.get(w).unwrap())?])
    };
    let expected = run(&Offload::new(0)).unwrap();
    simulator.reset_counters();
    for late in [false, true] {
        simulator.set_late(late);
        let offload = Offload::new(MIB);
        assert_eq!(differing(&run(&offload).unwrap(), &expected), 0);
        // `x` thrice and `y`: a Var, a sum by candle's own operation and a transposed matrix stay.
        assert_eq!(offload.stats().moved, 4);
    }
    simulator.set_late(false);
    assert_eq!(simulator.counters().hazards, 0);
}

/// Dropped without a backward pass, and on another thread.
#[test]
fn a_graph_that_is_dropped() {
    let Some((_gpu, simulator)) = simulated(ORDINAL) else {
        return;
    };
    let memory = DeviceMemory::cuda(ORDINAL).open().unwrap();
    let model = Model::new(memory.device()).unwrap();
    simulator.reset_counters();
    let before = held(simulator);
    for late in [false, true] {
        simulator.set_late(late);
        let offload = Offload::new(64 * MIB);
        drop(offload.within(|| model.loss()).unwrap());
        assert_eq!(held(simulator)[0], before[0]);
        let loss = offload.within(|| model.loss()).unwrap();
        std::thread::spawn(move || drop((loss, offload)))
            .join()
            .unwrap();
        assert_eq!(held(simulator), before);
    }
    simulator.set_late(false);
    assert_eq!(simulator.counters().hazards, 0);
}

/// In a trainer's closure, also where memory runs out and the step is tried again.
#[test]
fn a_trainer_moves_them_too() {
    let Some((_gpu, simulator)) = simulated(ORDINAL) else {
        return;
    };
    let memory = DeviceMemory::cuda(ORDINAL).open().unwrap();
    let mut errors = 0;
    let mut run = |offload: Option<&Offload>, fails: u64| -> Result<Vec<u64>> {
        let model = Model::new(memory.device())?;
        let vars: Vec<_> = model.blocks.iter().flatten().cloned().collect();
        let vars = [vars, vec![model.embedding.clone()]].concat();
        let optimizer = Sgd::builder(vars.clone())
            .learning_rate(0.1)
            .build()
            .unwrap();
        let builder = AdaptiveTrainer::builder(optimizer).memory(&memory);
        let builder = builder.recompute(Recompute::Always);
        let mut trainer = builder.policy(Fixed::new(24).unwrap()).build().unwrap();
        let tokens = model.tokens.to_device(&Device::Cpu)?;
        for _ in 0..2 {
            if fails > 0 {
                simulator.fail_allocation(fails, 1);
            }
            let loss = |tokens: Tensor, _: &_| {
                let part = Model {
                    tokens: tokens.to_device(memory.device())?,
                    embedding: model.embedding.clone(),
                    blocks: model.blocks.clone(),
                };
                match offload {
                    Some(offload) => offload.within(|| part.loss()),
                    None => part.loss(),
                }
            };
            if let Err(error) = trainer.step(&tokens, loss) {
                // The size is fixed, so nothing smaller was tried.
                assert!(fails > 0 && error.resource_exhausted().is_some(), "{error}");
                errors += 1;
                simulator.disarm();
                trainer.step(&tokens, loss).unwrap();
            }
            simulator.disarm();
        }
        let values: Result<Vec<_>> = vars.iter().map(|var| bits(var)).collect();
        Ok(values?.concat())
    };
    let expected = run(None, 0).unwrap();
    simulator.reset_counters();
    let offload = Offload::new(64 * MIB);
    for fails in [0, 40, 90, 200] {
        assert!(run(Some(&offload), fails).unwrap() == expected, "{fails}");
    }
    assert!(errors > 2 && offload.stats().moved > 0, "{errors}");
    assert_eq!(simulator.counters().hazards, 0);
}
