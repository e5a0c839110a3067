//! AdamW with its state on the device, and on the host, where the device updates it over the bus.

use std::sync::Arc;

use candle_core::backprop::GradStore;
use candle_core::cuda_backend::WrapErr;
use candle_core::cuda_backend::cudarc::driver::{CudaSlice, CudaStream, PinnedHostSlice};
use candle_core::{DType, Device, Var};
use candle_headroom::optim::Commit;
use candle_headroom::{AdamW, DeviceMemory, Result};

use crate::support::parameters::{Parameters, transformer};
use crate::support::{Contender, alternate};
use crate::{Scale, is_real, report};

/// Parameters in f32, and in bf16 with master weights.
pub fn moments(scale: &Scale) -> Result<()> {
    compare(scale, DType::F32, "")?;
    compare(scale, DType::BF16, "_bf16")
}

fn compare(scale: &Scale, dtype: DType, suffix: &str) -> Result<()> {
    let shapes = match is_real() {
        true => transformer(50_257, 1024, 768, 12),
        false => transformer(16, 4, 4, 1),
    };
    let memory = DeviceMemory::cuda(0).open()?;
    let device = memory.device();
    let mut plain = Contestant::new(&memory, &shapes, dtype, false)?;
    let mut moved = Contestant::new(&memory, &shapes, dtype, true)?;
    let (on_device, on_host) = (plain.taken, moved.taken);
    let (elements, state) = (plain.elements, moved.optimizer.host_state_bytes());

    // The state goes down and up, at the same time.
    let mut both_ways = [
        Way::new(device, state as usize)?,
        Way::new(device, state as usize)?,
    ];
    let contenders = vec![
        Contender::new("state on the device", || plain.commit(device)),
        Contender::new("state on the host", || moved.commit(device)),
        Contender::new("copying state", || {
            let [up, down] = &mut both_ways;
            up.up();
            down.down();
            up.wait();
            down.wait();
        }),
    ];
    let rounds = alternate(contenders, scale.rounds);
    let millions = elements as f64 / 1e6;
    rounds.print(
        &format!("AdamW: {millions:.1} million parameters in {dtype:?}"),
        1,
    );
    let megabytes = |bytes: u64| bytes as f64 / 1e6;
    for (name, bytes) in [("on_device_state", on_device), ("on_host_state", on_host)] {
        report(&format!("adamw_{name}{suffix}"), megabytes(bytes), "MB");
    }
    for (name, other) in [
        ("vs_on_device", "state on the device"),
        ("vs_copies", "copying state"),
    ] {
        let name = format!("adamw_on_host_{name}{suffix}");
        report(&name, rounds.ratio("state on the host", other), "x");
    }
    Ok(())
}

struct Contestant {
    optimizer: AdamW,
    gradients: GradStore,
    elements: usize,
    /// Bytes of the device that its optimizer has taken.
    taken: u64,
}

impl Contestant {
    /// State on the host or on the device.
    fn new(
        memory: &DeviceMemory,
        shapes: &[Vec<usize>],
        dtype: DType,
        is_moved: bool,
    ) -> Result<Self> {
        let made = Parameters::on(memory.device(), shapes)?;
        let (mut vars, mut gradients) = (Vec::new(), GradStore::default());
        for var in &made.vars {
            let converted = Var::from_tensor(&var.to_dtype(dtype)?)?;
            let gradient = made.gradients.get(var).expect("each has one");
            gradients.insert(&converted, gradient.to_dtype(dtype)?);
            vars.push(converted);
        }
        let elements = made.elements;
        drop(made);
        let in_use = || memory.stats().in_use.unwrap_or(0);
        let before = in_use();
        // It has no effect on f32.
        let mut builder = AdamW::builder(vars).master_weights();
        if is_moved {
            builder = builder.moments_on_host(1.);
        }
        let optimizer = builder.build()?;
        Ok(Self {
            optimizer,
            gradients,
            elements,
            taken: in_use() - before,
        })
    }

    fn commit(&mut self, device: &Device) {
        self.optimizer.commit(&self.gradients).expect("a step");
        device.synchronize().expect("a sound device");
    }
}

/// As many bytes on the host and on the device, and a stream that copies them.
struct Way {
    stream: Arc<CudaStream>,
    host: PinnedHostSlice<u8>,
    device: CudaSlice<u8>,
}

impl Way {
    fn new(device: &Device, bytes: usize) -> Result<Self> {
        let context = device.as_cuda_device()?.cuda_stream().context().clone();
        let stream = context.new_stream().w()?;
        // SAFETY: bytes may have any value, and these are only copied.
        let host = unsafe { context.alloc_pinned_with_flags(bytes, 0) }.w()?;
        let device = stream.alloc_zeros(bytes).w()?;
        stream.synchronize().w()?;
        Ok(Self {
            stream,
            host,
            device,
        })
    }

    fn up(&mut self) {
        let copied = self.stream.memcpy_htod(&self.host, &mut self.device);
        copied.expect("a copy");
    }

    fn down(&mut self) {
        let copied = self.stream.memcpy_dtoh(&self.device, &mut self.host);
        copied.expect("a copy");
    }

    fn wait(&self) {
        self.stream.synchronize().expect("a sound device");
    }
}
