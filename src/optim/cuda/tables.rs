use candle_core::backprop::GradStore;
use candle_core::cuda_backend::cudarc::driver::{CudaSlice, CudaStream, DevicePtr, DeviceRepr};
use candle_core::{CudaDevice, Device, Tensor};

use super::address::{address_of, code, locate};
use super::layout::{Arguments, COEFFICIENTS, Control, Entry, Header, Slot, Task};
use crate::error::{OptimizerError, Result};
use crate::optim::axes::Axes;
use crate::optim::fused::{Progress, Setup, misplaced};
use crate::optim::rule::Rule;

/// The engine's own memory on the device, besides the state of parameters.
#[derive(Debug)]
pub struct Tables {
    entries: Sent<Entry>,
    /// Axes of gradients that are not contiguous.
    axes: Sent<Axes>,
    _slots: CudaSlice<Slot>,
    _chunks: CudaSlice<Task>,
    /// The current control, then the next.
    control: CudaSlice<Control>,
    /// How often each parameter was updated.
    pub counts: CudaSlice<u64>,
    /// The coefficients of each parameter, then a sum for each chunk.
    scratch: CudaSlice<f64>,
    /// The loss scale, in f64 so that losses are multiplied and gradients divided by the same number.
    pub scale: Tensor,
    pub arguments: Arguments,
}

impl Tables {
    pub fn new(
        device: &CudaDevice,
        slots: &[Slot],
        chunks: &[Task],
        counts: &[u64],
        progress: Progress,
    ) -> Result<Self> {
        let stream = device.cuda_stream();
        let parameters = slots.len();
        let control = Control::from(progress);
        let entries = Sent::new(device, vec![Entry::default(); parameters])?;
        let axes = Sent::new(device, vec![Axes::default(); parameters])?;
        let slots = device.clone_htod(slots)?;
        let control = device.clone_htod(&[control; 2])?;
        let counts = device.clone_htod(counts)?;
        let scratch = device.alloc_zeros(COEFFICIENTS * parameters + chunks.len())?;
        let chunks = device.clone_htod(chunks)?;
        let scale = Tensor::new(progress.scale(), &Device::Cuda(device.clone()))?;
        let coefficients = start(&scratch, &stream);
        let arguments = Arguments {
            header: Header::default(),
            entries: start(&entries.device, &stream),
            axes: start(&axes.device, &stream),
            slots: start(&slots, &stream),
            chunks: start(&chunks, &stream),
            control: start(&control, &stream),
            counts: start(&counts, &stream),
            coefficients,
            partials: coefficients + (COEFFICIENTS * parameters * size_of::<f64>()) as u64,
            scale: address_of(Some(&scale), &stream)?,
            parameters: parameters as u64,
        };
        Ok(Self {
            entries,
            axes,
            _slots: slots,
            _chunks: chunks,
            control,
            counts,
            scratch,
            scale,
            arguments,
        })
    }

    /// Describes an update and sends what has changed since the last one. It checks the gradients' layouts first.
    pub fn describe<R: Rule>(
        &mut self,
        device: &CudaDevice,
        setup: &Setup<R>,
        gradients: &GradStore,
        squares: Option<f64>,
    ) -> Result<()> {
        self.arguments.header = Header::new(setup, squares);
        for (index, (parameter, _)) in setup.ranges().enumerate() {
            let Some(gradient) = setup.gradient(parameter, gradients) else {
                self.entries.set(index, Entry::default());
                continue;
            };
            let axes = Axes::of(gradient.layout());
            let axes = axes.map_err(|rank| OptimizerError::GradientStrides {
                parameter: parameter.name.clone(),
                rank,
            })?;
            if axes.rank > 0 {
                self.axes.set(index, axes);
            }
            let addresses = locate(parameter, gradient)?;
            let rates = setup.rates(parameter);
            let entry = Entry {
                parameter: addresses.0,
                gradient: addresses.1,
                gradient_dtype: code(gradient.dtype())?,
                rank: axes.rank as u32,
                learning_rate: rates.learning_rate,
                weight_decay: rates.weight_decay,
            };
            self.entries.set(index, entry);
        }
        self.axes.send(device)?;
        self.entries.send(device)
    }

    /// The sums of the chunks, after the device has finished.
    pub fn partials(&self, device: &CudaDevice) -> Result<Vec<f64>> {
        let coefficients = COEFFICIENTS * self.entries.rows.len();
        let partials = self.scratch.try_slice(coefficients..);
        Ok(device.clone_dtoh(&partials.ok_or_else(misplaced)?)?)
    }

    pub fn control(&self, device: &CudaDevice) -> Result<Control> {
        let control = device.clone_dtoh(&self.control)?;
        Ok(control.first().copied().ok_or_else(misplaced)?)
    }
}

/// A table on the host, which is sent to the device when it has changed. Its memory is reused.
#[derive(Debug)]
struct Sent<T> {
    rows: Vec<T>,
    is_sent: bool,
    device: CudaSlice<T>,
}

impl<T: DeviceRepr + PartialEq + 'static> Sent<T> {
    fn new(device: &CudaDevice, rows: Vec<T>) -> Result<Self> {
        Ok(Self {
            device: device.clone_htod(&rows)?,
            rows,
            is_sent: true,
        })
    }

    fn set(&mut self, index: usize, row: T) {
        if let Some(old) = self.rows.get_mut(index)
            && *old != row
        {
            *old = row;
            self.is_sent = false;
        }
    }

    fn send(&mut self, device: &CudaDevice) -> Result<()> {
        if !self.is_sent {
            device.memcpy_htod(&self.rows, &mut self.device)?;
            self.is_sent = true;
        }
        Ok(())
    }
}

pub fn start<T>(slice: &CudaSlice<T>, stream: &CudaStream) -> u64 {
    slice.device_ptr(stream).0
}
