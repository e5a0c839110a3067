//! AdamW with its moments on the device and on the host, beside the least that other ways to have them on the host would take.

use std::sync::Arc;

use candle_core::Device;
use candle_core::cuda_backend::WrapErr;
use candle_core::cuda_backend::cudarc::driver::{CudaSlice, CudaStream, PinnedHostSlice};
use candle_headroom::{AdamW, DeviceMemory, Result};

use crate::support::parameters::{Parameters, transformer};
use crate::support::{Contender, alternate};
use crate::{Scale, is_real, report};

pub fn moments(scale: &Scale) -> Result<()> {
    let shapes = match is_real() {
        true => transformer(50_257, 1024, 768, 12),
        false => transformer(16, 4, 4, 1),
    };
    let memory = DeviceMemory::cuda(0).open()?;
    let device = memory.device();
    let in_use = || memory.stats().in_use.unwrap_or(0);
    let on_device = Parameters::on(device, &shapes)?;
    let on_host = Parameters::on(device, &shapes)?;
    let on_cores = Parameters::on(&Device::Cpu, &shapes)?;
    let elements = on_host.elements;

    let before = in_use();
    let mut plain = AdamW::builder(on_device.vars).build()?;
    let with_moments = in_use() - before;
    let before = in_use();
    let mut moved = AdamW::builder(on_host.vars).moments_on_host(1.).build()?;
    let without = in_use() - before;
    let mut cores = AdamW::builder(on_cores.vars).build()?;

    // AdamW's moments take 8 bytes for an element, its gradient and its parameter 4 each.
    let mut both_ways = [
        Way::new(device, 8 * elements)?,
        Way::new(device, 8 * elements)?,
    ];
    let mut gradients = Way::new(device, 4 * elements)?;
    let wait = || device.synchronize().expect("a sound device");
    let contenders = vec![
        Contender::new("moments on the device", || {
            plain.commit(&on_device.gradients).expect("a step");
            wait();
        }),
        Contender::new("moments on the host", || {
            moved.commit(&on_host.gradients).expect("a step");
            wait();
        }),
        Contender::new("copying moments", || {
            let [up, down] = &mut both_ways;
            up.up();
            down.down();
            up.wait();
            down.wait();
        }),
        Contender::new("the host's cores", || {
            gradients.down();
            gradients.wait();
            cores.commit(&on_cores.gradients).expect("a step");
            gradients.up();
            gradients.wait();
        }),
    ];
    let rounds = alternate(contenders, scale.rounds);
    let millions = elements as f64 / 1e6;
    rounds.print(&format!("AdamW: {millions:.1} million parameters"), 1);
    println!("  (the last two: the least that a ring of buffers and the host's cores would take)");
    let megabytes = |bytes: u64| bytes as f64 / 1e6;
    report("adamw_on_device_state", megabytes(with_moments), "MB");
    report("adamw_on_host_state", megabytes(without), "MB");
    for (name, other) in [
        ("adamw_on_host_vs_on_device", "moments on the device"),
        ("adamw_on_host_vs_copies", "copying moments"),
        ("adamw_on_host_vs_cores", "the host's cores"),
    ] {
        report(name, rounds.ratio("moments on the host", other), "x");
    }
    Ok(())
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
