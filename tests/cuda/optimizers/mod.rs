//! The fused optimizers on the device: the bits of those on the CPU, wholly or not at all, and without waiting.

mod bits;
mod decisions;
mod failures;
mod host;
mod sharded;
mod state;

use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Tensor, Var};
use candle_headroom::optim::{Algorithm, Commit, Fused, FusedBuilder, Group};

use crate::gpu::{Gpu, gpu};
use crate::support::{flat, wave};

fn device() -> (Gpu, Device) {
    let gpu = gpu();
    let device = Device::new_cuda_with_stream(gpu.ordinal).unwrap();
    (gpu, device)
}

/// Parameters of each rank, one that is longer than a block and not a multiple of four, one with moments of 8 bits that does not end
/// with a block, and their gradients.
struct Job {
    device: Device,
    dtype: DType,
    vars: Vec<Var>,
}

const SHAPES: [&[usize]; 6] = [&[5, 7], &[3], &[], &[2, 3, 4], &[1101], &[67, 131]];

impl Job {
    fn new(device: &Device, dtype: DType) -> Self {
        let vars = SHAPES.iter().enumerate().map(|(index, shape)| {
            let wave = wave(shape.iter().product(), index, dtype).unwrap();
            let wave = wave.reshape(*shape).unwrap().to_device(device).unwrap();
            Var::from_tensor(&wave).unwrap()
        });
        Self {
            device: device.clone(),
            dtype,
            vars: vars.collect(),
        }
    }

    fn wave(&self, shape: &[usize], phase: usize, dtype: DType) -> Tensor {
        let wave = wave(shape.iter().product(), phase, dtype).unwrap();
        wave.reshape(shape)
            .unwrap()
            .to_device(&self.device)
            .unwrap()
    }

    /// The first is transposed, the fourth cut out of a larger one; the second is one number for all elements, with a stride of 0, and
    /// has none in every third step.
    fn gradients(&self, step: usize) -> GradStore {
        let phase = 10 * step;
        let mut gradients = GradStore::default();
        let [matrix, vector, scalar, cube, long, large] = self.vars.as_slice() else {
            panic!("six parameters");
        };
        gradients.insert(matrix, self.wave(&[7, 5], phase, self.dtype).t().unwrap());
        if step % 3 != 1 {
            let one = self.wave(&[1], phase + 1, self.dtype);
            gradients.insert(vector, one.broadcast_as(3).unwrap());
        }
        gradients.insert(scalar, self.wave(&[], phase + 2, self.dtype));
        let wide = self.wave(&[2, 3, 6], phase + 3, self.dtype);
        gradients.insert(cube, wide.narrow(2, 1, 4).unwrap());
        let half = matches!(self.dtype, DType::F16 | DType::BF16);
        let dtype = if half && step.is_multiple_of(2) {
            DType::F32
        } else {
            self.dtype
        };
        gradients.insert(long, self.wave(&[1101], phase + 4, dtype));
        gradients.insert(large, self.wave(&[67, 131], phase + 5, dtype));
        gradients
    }

    fn builder<A: Algorithm>(&self, params: &A) -> FusedBuilder<A> {
        let group = |from: usize, to: usize| Group::from(self.vars[from..to].to_vec());
        Fused::builder(group(0, 2))
            .params(params.clone())
            .group(group(2, 4).learning_rate_factor(0.5).weight_decay(0.2))
            .group(group(4, 6))
    }

    fn values(&self) -> Vec<Vec<f64>> {
        self.vars.iter().map(|var| flat(var)).collect()
    }
}

fn bits(values: &[Vec<f64>]) -> Vec<Vec<u64>> {
    let bits = |values: &Vec<f64>| values.iter().map(|value| value.to_bits()).collect();
    values.iter().map(bits).collect()
}

/// A scaled loss, which an update with a loss scale asks for.
fn scale<A: Algorithm>(optimizer: &Fused<A>, device: &Device) {
    let one = Tensor::ones((), DType::F32, device).unwrap();
    optimizer.scale_loss(&one).unwrap();
}
