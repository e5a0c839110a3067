/// An operation on a file or a folder of a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FileOperation {
    /// A file or folder is created.
    Create,
    /// Bytes are written.
    Write,
    /// A file or folder is flushed to the disk.
    Sync,
    /// A folder is renamed.
    Rename,
    /// A file or folder is removed.
    Remove,
}
