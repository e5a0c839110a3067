use candle_core::Device;

use crate::error::{Result, invalid};
use crate::memory::{DeviceMemory, Growth, Limit};

pub(super) fn open(ordinal: usize, _: Option<Growth>, _: Limit) -> Result<DeviceMemory> {
    Err(invalid!(
        Memory,
        "CUDA device {ordinal} cannot be opened: build candle-headroom with its feature `cuda`"
    ))
}

pub(super) fn synchronize(device: &Device) -> Result<()> {
    Ok(device.synchronize()?)
}

pub(super) fn trim(_: &Device) -> Result<()> {
    Ok(())
}
