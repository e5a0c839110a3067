use candle_core::{Device, Tensor};

use crate::error::{Result, invalid};
use crate::memory::{DeviceMemory, Growth, Limit};

pub(super) fn open(ordinal: usize, _: Option<Growth>, _: Limit, _: bool) -> Result<DeviceMemory> {
    Err(invalid!(
        Memory,
        "CUDA device {ordinal} cannot be opened: build candle-headroom with its feature `cuda`"
    ))
}

pub(super) fn opened(_: &Device) -> Option<DeviceMemory> {
    None
}

pub(super) fn is_full(_: &Device) -> bool {
    false
}

pub(super) fn synchronize(device: &Device) -> Result<()> {
    Ok(device.synchronize()?)
}

pub(super) fn trim(_: &Device) -> Result<()> {
    Ok(())
}

/// Without the feature no device has a queue.
#[derive(Debug)]
#[allow(dead_code, reason = "there are none")]
pub(crate) struct Mark(());

impl Mark {
    pub(crate) fn new(_: &Device) -> Option<Self> {
        None
    }

    pub(crate) fn has_passed(&self) -> bool {
        true
    }

    pub(crate) fn read<'t>(&self, _: impl Iterator<Item = &'t Tensor>) -> Option<Vec<f64>> {
        None
    }
}
