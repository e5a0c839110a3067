/// An operation on a file or a folder of a checkpoint, or on the file of a timeline.
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
    /// A checkpoint's file is read to be verified, or a tensor of it to be loaded. It is counted only with
    /// `FileFaults::only`.
    Read,
}
