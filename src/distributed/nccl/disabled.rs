use std::sync::Arc;

use candle_core::Device;

use crate::distributed::collectives::Collectives;
use crate::distributed::control::Control;
use crate::distributed::watch::Watch;
use crate::error::{GroupError, Result};

/// No NCCL: the feature `cuda` is off.
pub(in crate::distributed) fn open(
    device: &Device,
    control: &Arc<Control>,
    _: &Watch,
) -> Result<Arc<dyn Collectives>> {
    Err(GroupError::NoEngine {
        device: format!("{:?}", device.location()),
        size: control.size(),
        reason: "build with the feature `cuda`".to_owned(),
    }
    .into())
}
