use std::sync::Arc;

use candle_core::Device;

use crate::distributed::{Collectives, Group, Watch};
use crate::error::Result;

/// Returns the engine of a group for tensors on this device, to test or time it by itself; `None` in a group of one. All ranks have to call this
/// together.
///
/// # Errors
/// No engine on some rank ([`is_group`](crate::Error::is_group)), or [`GroupError`](crate::error::GroupError): the engine's own.
pub fn collectives(group: &Group, device: &Device) -> Result<Option<Arc<dyn Collectives>>> {
    group.collectives(device)
}

/// Returns what ends a wait for other ranks after the group's timeout from now, for the calls of an engine.
pub fn watch(group: &Group, what: &'static str) -> Watch {
    group.watch(what)
}
