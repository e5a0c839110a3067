use std::sync::{Arc, Mutex, PoisonError};

use candle_core::{DType, Device, Result, Tensor};

use super::config::Config;

/// Cosines and sines of the angles of positions, (positions, width of a head / 2), made when they are first needed.
#[derive(Clone)]
pub struct Rotations {
    /// For each pair, radians for each position.
    frequencies: Vec<f32>,
    dtype: DType,
    device: Device,
    made: Arc<Mutex<Option<[Tensor; 2]>>>,
}

impl Rotations {
    pub fn new(config: &Config, dtype: DType, device: &Device) -> Self {
        let width = config.head_dim;
        let frequencies = (0..width / 2).map(|pair| {
            let frequency = config.rope_theta.powf(-2. * pair as f64 / width as f64);
            let scaled = config.rope_scaling.map(|scaling| scaling.scale(frequency));
            scaled.unwrap_or(frequency) as f32
        });
        Self {
            frequencies: frequencies.collect(),
            dtype,
            device: device.clone(),
            made: Arc::default(),
        }
    }

    /// Those of positions from `first` on.
    pub fn of(&self, first: usize, count: usize) -> Result<[Tensor; 2]> {
        let positions = first + count;
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let enough = made
            .take()
            .filter(|[cos, _]| cos.dims().first() >= Some(&positions));
        let tables = match enough {
            Some(tables) => tables,
            None => self.make(positions.next_power_of_two())?,
        };
        let [cos, sin] = made.insert(tables);
        Ok([cos.narrow(0, first, count)?, sin.narrow(0, first, count)?])
    }

    fn make(&self, positions: usize) -> Result<[Tensor; 2]> {
        let angles = (0..positions).flat_map(|position| {
            let angle = move |frequency: &f32| position as f32 * frequency;
            self.frequencies.iter().map(angle)
        });
        let angles: Vec<f32> = angles.collect();
        let table = |of: fn(f32) -> f32| {
            let values = angles.iter().copied().map(of);
            let table = Tensor::from_iter(values, &Device::Cpu)?;
            let table = table.reshape((positions, self.frequencies.len()))?;
            table.to_dtype(self.dtype)?.to_device(&self.device)
        };
        Ok([table(f32::cos)?, table(f32::sin)?])
    }
}
