use candle_core::Device;

use crate::error::{MemoryError, Result};
use crate::memory::{DeviceMemory, Growth, Limit};

pub(super) fn open(ordinal: usize, _: Option<Growth>, _: Limit) -> Result<DeviceMemory> {
    Err(MemoryError::NotBuilt(ordinal).into())
}

pub(super) fn synchronize(device: &Device) -> Result<()> {
    Ok(device.synchronize()?)
}

pub(super) fn trim(_: &Device) -> Result<()> {
    Ok(())
}
