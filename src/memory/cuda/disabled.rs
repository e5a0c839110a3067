use candle_core::Device;

use super::growth::Growth;
use crate::error::{MemoryError, Result};
use crate::memory::{DeviceMemory, Limit};

pub(super) fn open(ordinal: usize, _: Option<Growth>, _: Limit) -> Result<DeviceMemory> {
    Err(MemoryError::NotBuilt { ordinal }.into())
}

pub(super) fn synchronize(device: &Device) -> Result<()> {
    Ok(device.synchronize()?)
}

pub(super) fn recover(device: &Device) -> Result<()> {
    synchronize(device)
}
