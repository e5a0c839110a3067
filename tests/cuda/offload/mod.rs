//! `nn::Offload`: the values of regions whose inputs stay, in an order of copies without hazards, whatever fails. And regions in tiles.

mod failures;
mod moves;
mod tiles;

use candle_core::{DType, Device, Result, Tensor, Var};
use candle_headroom::nn::{Embedding, Linear, Module, Offload, RmsNorm, recompute};

use crate::simulator::Simulator;

const BLOCKS: usize = 8;
const TOKENS: usize = 48;
const WIDTH: usize = 64;
/// Bytes of the input of a region.
const INPUT: u64 = (TOKENS * WIDTH * 4) as u64;

/// A deep model of which each block is a region.
struct Model {
    tokens: Tensor,
    embedding: Var,
    /// The norm's weight, and two matrices.
    blocks: Vec<[Var; 3]>,
}

impl Model {
    fn new(device: &Device) -> Result<Self> {
        Self::of(BLOCKS, TOKENS, device)
    }

    fn of(blocks: usize, tokens: usize, device: &Device) -> Result<Self> {
        let mut seed = 0;
        let mut var = |shape: &[usize]| {
            seed += 1;
            let count = shape.iter().product::<usize>() as u32;
            let values =
                (0..count).map(|i| ((i * 7919 + seed * 104_729) % 1013) as f32 / 6000. - 0.08);
            let values = Tensor::from_iter(values, &Device::Cpu)?;
            Var::from_tensor(&values.reshape(shape)?.to_device(device)?)
        };
        let embedding = var(&[16, WIDTH])?;
        let block = |_| {
            Ok([
                var(&[WIDTH])?,
                var(&[2 * WIDTH, WIDTH])?,
                var(&[WIDTH, 2 * WIDTH])?,
            ])
        };
        let blocks = (0..blocks).map(block).collect::<Result<_>>()?;
        let tokens = (0..tokens as u32).map(|token| token * 5 % 16);
        let tokens = Tensor::from_iter(tokens, &Device::Cpu)?.to_device(device)?;
        Ok(Self {
            tokens,
            embedding,
            blocks,
        })
    }

    fn loss(&self) -> Result<Tensor> {
        let embedding = Embedding::new(self.embedding.as_tensor().clone(), WIDTH);
        let mut x = embedding.forward(&self.tokens)?;
        for block in &self.blocks {
            let block = block.clone();
            x = recompute(&x, move |x| forward(&block, x))?;
        }
        x.sqr()?.mean_all()
    }

    /// The loss and all gradients.
    fn values(&self, loss: &Tensor) -> Result<Vec<Vec<u64>>> {
        let gradients = loss.backward()?;
        let mut values = vec![bits(loss)?];
        for var in self.blocks.iter().flatten().chain([&self.embedding]) {
            values.push(bits(gradients.get(var).expect("a gradient"))?);
        }
        Ok(values)
    }

    /// The same with `offload`.
    fn offloaded(&self, offload: &Offload) -> Result<Vec<Vec<u64>>> {
        self.values(&offload.within(|| self.loss())?)
    }
}

fn forward([norm, up, down]: &[Var; 3], x: &Tensor) -> Result<Tensor> {
    let linear = |weight: &Var| Linear::new(weight.as_tensor().clone(), None);
    let normed = RmsNorm::new(norm.as_tensor().clone(), 1e-5).forward(x)?;
    x + linear(down).forward(&linear(up).forward(&normed)?.silu()?)?
}

fn bits(tensor: &Tensor) -> Result<Vec<u64>> {
    let values = tensor
        .flatten_all()?
        .to_dtype(DType::F64)?
        .to_vec1::<f64>()?;
    Ok(values.into_iter().map(f64::to_bits).collect())
}

/// The bits in which two runs differ.
fn differing(found: &[Vec<u64>], expected: &[Vec<u64>]) -> u32 {
    assert_eq!(found.len(), expected.len());
    let pairs = found.iter().flatten().zip(expected.iter().flatten());
    pairs.map(|(a, b)| (a ^ b).count_ones()).sum()
}

/// What a device has given away: bytes, bytes of the host, events and streams.
fn held(simulator: Simulator) -> [u64; 4] {
    let counters = simulator.counters();
    [
        counters.live_bytes,
        counters.live_host_bytes,
        counters.live_events,
        counters.live_streams,
    ]
}
