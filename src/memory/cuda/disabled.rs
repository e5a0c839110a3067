use std::time::Duration;

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

/// Without CUDA there are no events.
#[derive(Debug)]
pub(crate) enum Events {}

impl Events {
    pub(crate) fn start(_: &Device) -> Result<Option<Self>> {
        Ok(None)
    }

    pub(crate) fn stop(&mut self) -> Result<()> {
        match *self {}
    }

    pub(crate) fn elapsed(&self) -> Result<Option<Duration>> {
        match *self {}
    }
}
