//! The one limit on this process's memory, and who holds it.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::Limit;
use super::counters::COUNTERS;
use crate::error::{MemoryError, Result};

/// The limit in force while a handle lives.
static OPEN: Mutex<Weak<HostMemory>> = Mutex::new(Weak::new());

#[derive(Debug)]
pub(super) struct HostMemory {
    asked: Mutex<Limit>,
    /// `u64::MAX` without a limit.
    bytes: AtomicU64,
}

impl HostMemory {
    /// The limit in force, if it is what is asked for; a new one where none is.
    pub(super) fn open(asked: Limit) -> Result<Arc<Self>> {
        refuse_uncounted(asked)?;
        let mut open = OPEN.lock();
        if let Some(host) = open.upgrade() {
            // A handle that turns out to be the last one takes the lock when it drops.
            drop(open);
            host.agree(asked)?;
            return Ok(host);
        }
        let bytes = admit(asked)?;
        let host = Arc::new(Self {
            asked: Mutex::new(asked),
            bytes: AtomicU64::new(u64::MAX),
        });
        host.watch(bytes);
        *open = Arc::downgrade(&host);
        Ok(host)
    }

    fn agree(&self, asked: Limit) -> Result<()> {
        if asked == Limit::Unlimited || asked == *self.asked.lock() {
            return Ok(());
        }
        Err(MemoryError::AlreadyOpen {
            open: self.limit(),
            asked: asked.resolve(COUNTERS.in_use() as u64)?,
        }
        .into())
    }

    pub(super) fn set_limit(&self, limit: Limit) -> Result<()> {
        let bytes = admit(limit)?;
        let mut asked = self.asked.lock();
        *asked = limit;
        self.watch(bytes);
        Ok(())
    }

    pub(super) fn limit(&self) -> Option<u64> {
        Some(self.bytes.load(Relaxed)).filter(|&bytes| bytes != u64::MAX)
    }

    fn watch(&self, limit: Option<u64>) {
        let bytes = limit.unwrap_or(u64::MAX);
        self.bytes.store(bytes, Relaxed);
        COUNTERS.watch(usize::try_from(bytes).unwrap_or(usize::MAX));
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        // Somebody may have opened the host anew since the last handle let go: then the counters are theirs.
        let open = OPEN.lock();
        if open.strong_count() == 0 {
            COUNTERS.watch(usize::MAX);
        }
    }
}

fn refuse_uncounted(limit: Limit) -> Result<(), MemoryError> {
    match limit != Limit::Unlimited && !COUNTERS.are_fed() {
        true => Err(MemoryError::AllocatorNotInstalled),
        false => Ok(()),
    }
}

/// The limit in bytes, if it can be kept from here on.
fn admit(limit: Limit) -> Result<Option<u64>, MemoryError> {
    refuse_uncounted(limit)?;
    let in_use = COUNTERS.in_use() as u64;
    match limit.resolve(in_use)? {
        Some(limit) if limit < in_use => Err(MemoryError::BelowUse { limit, in_use }),
        limit => Ok(limit),
    }
}
