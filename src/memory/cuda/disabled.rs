use candle_core::Device;

use super::Growth;
use crate::error::{MemoryError, Result};
use crate::memory::{DeviceMemory, Limit};

pub(super) fn open(ordinal: usize, _: Option<Growth>, _: Limit) -> Result<DeviceMemory> {
    Err(MemoryError::NotBuilt { ordinal }.into())
}

pub(crate) fn settle(device: &Device) -> Result<()> {
    Ok(device.synchronize()?)
}

pub(crate) fn recover(device: &Device) -> Result<()> {
    settle(device)
}
