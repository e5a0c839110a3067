//! Loads and stores.

use super::kernel::Fault;
use super::registers::{Frame, LANES, Slot, Word};
use super::space::{Region, Space};

/// An instruction that touches memory.
pub type Access = Box<dyn Fn(Frame, &mut Space, u32) -> Result<(), Fault> + Send + Sync>;

/// The addresses of an instruction.
#[derive(Clone, Copy, Debug)]
pub struct Address {
    pub region: Region,
    pub base: Slot,
    /// Whether the base register has 64 bits instead of 32.
    pub wide: bool,
    pub offset: i64,
    /// A unique number of this instruction.
    pub site: usize,
}

impl Address {
    /// The address of every lane.
    #[inline(always)]
    pub fn lanes(&self, frame: Frame) -> [u64; LANES] {
        let mut addresses = if self.wide {
            frame.lanes::<u64>(self.base)
        } else {
            frame.lanes::<u32>(self.base).map(u64::from)
        };
        for address in &mut addresses {
            *address = address.wrapping_add(self.offset as u64);
        }
        addresses
    }
}

/// Whether each lane's address is the previous lane's plus `step` bytes.
#[inline(always)]
fn consecutive(addresses: &[u64; LANES], step: u64) -> bool {
    let mut differs = 0;
    for (lane, address) in addresses.iter().enumerate() {
        differs |= address ^ addresses[0].wrapping_add(lane as u64 * step);
    }
    differs == 0
}

/// The lanes of a mask, in order.
pub fn lanes_of(mut mask: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let lane = mask.trailing_zeros() as usize;
        mask &= mask.wrapping_sub(1);
        (lane < LANES).then_some(lane)
    })
}

/// Loads one or several consecutive values per lane.
pub fn load<T: Word>(address: Address, targets: Vec<Slot>) -> Access {
    let size = size_of::<T>();
    let total = size * targets.len();
    if let [target] = targets[..] {
        return Box::new(move |frame, space, mask| {
            load_one::<T>(&address, target, frame, space, mask)
        });
    }
    Box::new(move |frame, space, mask| {
        let addresses = address.lanes(frame);
        let mut out = [[T::default(); LANES]; 8];
        for lane in lanes_of(mask) {
            let place =
                space.resolve(address.region, addresses[lane], total, lane, address.site)?;
            for (index, values) in out.iter_mut().take(targets.len()).enumerate() {
                // SAFETY: `resolve` checked that `total` bytes lie in live memory, aligned for all of them.
                values[lane] = unsafe { place.cast::<T>().add(index).read_unaligned() };
            }
        }
        for (values, target) in out.iter().zip(&targets) {
            frame.write(*target, values, mask);
        }
        Ok(())
    })
}

#[inline(always)]
fn load_one<T: Word>(
    address: &Address,
    target: Slot,
    frame: Frame,
    space: &mut Space,
    mask: u32,
) -> Result<(), Fault> {
    let size = size_of::<T>();
    let addresses = address.lanes(frame);
    let mut out = [T::default(); LANES];
    if mask == u32::MAX
        && consecutive(&addresses, size as u64)
        && let Some(place) = space.resolve_run(
            address.region,
            addresses[0],
            size * LANES,
            size,
            address.site,
        )
    {
        // SAFETY: `resolve_run` checked that 32 values lie in live memory.
        out = unsafe { place.cast::<[T; LANES]>().read_unaligned() };
    } else {
        for lane in lanes_of(mask) {
            let place = space.resolve(address.region, addresses[lane], size, lane, address.site)?;
            // SAFETY: `resolve` checked that the value lies in live memory.
            out[lane] = unsafe { place.cast::<T>().read_unaligned() };
        }
    }
    frame.write(target, &out, mask);
    Ok(())
}

/// Stores one or several consecutive values per lane.
pub fn store<T: Word>(address: Address, sources: Vec<Slot>) -> Access {
    let size = size_of::<T>();
    let total = size * sources.len();
    Box::new(move |frame, space, mask| {
        let addresses = address.lanes(frame);
        if let [source] = sources[..]
            && mask == u32::MAX
            && consecutive(&addresses, size as u64)
            && let Some(place) = space.resolve_run(
                address.region,
                addresses[0],
                size * LANES,
                size,
                address.site,
            )
        {
            // SAFETY: `resolve_run` checked that 32 values lie in live memory.
            unsafe {
                place
                    .cast::<[T; LANES]>()
                    .write_unaligned(frame.lanes(source))
            };
            return Ok(());
        }
        for lane in lanes_of(mask) {
            let place =
                space.resolve(address.region, addresses[lane], total, lane, address.site)?;
            for (index, source) in sources.iter().enumerate() {
                // SAFETY: `resolve` checked that `total` bytes lie in live memory, aligned for all of them.
                unsafe {
                    place
                        .cast::<T>()
                        .add(index)
                        .write_unaligned(frame.lane(*source, lane))
                };
            }
        }
        Ok(())
    })
}

/// A load or store for the size of one value.
pub fn by_width(bytes: usize, address: Address, slots: Vec<Slot>, loads: bool) -> Access {
    match (bytes, loads) {
        (1, true) => load::<u8>(address, slots),
        (2, true) => load::<u16>(address, slots),
        (4, true) => load::<u32>(address, slots),
        (_, true) => load::<u64>(address, slots),
        (1, false) => store::<u8>(address, slots),
        (2, false) => store::<u16>(address, slots),
        (4, false) => store::<u32>(address, slots),
        (_, false) => store::<u64>(address, slots),
    }
}
