use std::sync::Arc;

use candle_core::Device;

use crate::distributed::{Collectives, Group, GroupBuilder, Watch};
use crate::error::Result;

/// Returns the engine of a group for tensors on this device, to test or time it by itself; `None` in a group of one. All ranks have to call this
/// together.
///
/// ```
/// use candle_core::Device;
/// use candle_headroom::distributed::Group;
/// use candle_headroom::testing::collectives;
///
/// let group = Group::from_environment()?;
/// let engine = collectives(&group, &Device::Cpu)?;
/// assert_eq!(engine.is_some(), group.size() > 1);
/// # Ok::<(), candle_headroom::Error>(())
/// ```
///
/// # Errors
/// No engine on some rank ([`is_group`](crate::Error::is_group)), or [`GroupError`](crate::error::GroupError): the engine's own.
pub fn collectives(group: &Group, device: &Device) -> Result<Option<Arc<dyn Collectives>>> {
    group.collectives(device)
}

/// Returns what ends a wait for other ranks after the group's timeout from now, for the calls of an engine.
///
/// ```
/// use candle_headroom::distributed::Group;
/// use candle_headroom::testing::watch;
///
/// let group = Group::from_environment()?;
/// let watch = watch(&group, "exchange gradients");
/// assert!(watch.check().is_ok()); // no rank is lost, and there is time left
/// # Ok::<(), candle_headroom::Error>(())
/// ```
pub fn watch(group: &Group, what: &'static str) -> Watch {
    group.watch(what)
}

/// Sets how many branches a rank has at the most in the tree in which messages go, 16 by default, so that few ranks make several levels. It has to
/// be the same on all ranks.
///
/// ```
/// use candle_headroom::distributed::Group;
/// use candle_headroom::testing::fan_out;
///
/// let group = fan_out(Group::builder(), 2).open()?; // of 7 ranks, ranks 1 and 4 are connected to rank 0
/// group.barrier()?;
/// # Ok::<(), candle_headroom::Error>(())
/// ```
pub fn fan_out(mut builder: GroupBuilder, most: usize) -> GroupBuilder {
    builder.fan_out = most;
    builder
}
