//! Without the feature `object-store` nothing is copied.

use std::path::Path;

use super::folder::Keep;
use crate::error::Result;

#[derive(Debug, Clone)]
pub(super) enum Upload {}

impl Upload {
    pub(super) fn copy(&self, _: &Path, _: &Keep) -> Result<()> {
        match *self {}
    }

    pub(super) fn fetch(&self, _: &Path) -> Result<()> {
        match *self {}
    }
}
