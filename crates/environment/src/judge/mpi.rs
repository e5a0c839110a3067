use super::{Facts, Findings, around, code, joined};
use crate::facts::Version;
use crate::probe::libraries::{Library, MPI};
use crate::probe::mpi::{Kind, Mpi};

pub(super) fn judge(facts: &Facts, findings: &mut Findings) {
    let (Some(mpi), Some(libraries)) = (&facts.mpi, &facts.libraries) else {
        return;
    };
    let is_mpi = |library: &&Library| MPI.contains(&library.name);
    let found: Vec<_> = libraries.on_path.iter().filter(is_mpi).collect();
    let elsewhere = libraries.elsewhere.iter().find(is_mpi);
    // Ranks on GPUs can do without it.
    let is_wanted = facts.source.for_ranks || !facts.shows_gpu();
    match (&mpi.launcher, found.as_slice()) {
        (Some(launcher), [_, ..]) => {
            let version = around(" ", mpi.version.map(Version::plain), "");
            let kind = around(" (", mpi.kind, &format!("{version})"));
            let libraries = joined(found.iter().map(|library| described(library)), ", ");
            let seen = format!("{}{kind}, {libraries}", launcher.display());
            mixed(mpi, &found, findings);
            findings.add(code::MPI, seen);
            if is_wanted && !cfg!(feature = "mpi") {
                findings.add(code::MPI_NOT_BUILT, "the feature `mpi` is off");
            }
        }
        (None, []) if !is_wanted => {}
        (launcher, found) => incomplete(launcher.is_some(), found, elsewhere, findings),
    }
    root(facts, mpi, findings);
}

fn described(library: &Library) -> String {
    let kind = around(" (", Kind::of(library), ")");
    format!("{}{kind}", library.soname)
}

fn incomplete(
    has_launcher: bool,
    found: &[&Library],
    elsewhere: Option<&Library>,
    findings: &mut Findings,
) {
    let no_launcher = (!has_launcher).then(|| "no mpirun and no mpiexec on PATH".to_owned());
    let no_library = found.is_empty().then(|| match elsewhere {
        Some(library) => format!("{} is not on the library path", library.path()),
        None => "no libmpi on the library path".to_owned(),
    });
    let seen = no_launcher.into_iter().chain(no_library);
    let finding = findings.begin(code::MPI_INCOMPLETE, joined(seen, ", "));
    if let Some(folder) = elsewhere.and_then(|library| library.folder.strip_suffix("/lib")) {
        finding.next_step = "add MPI's folders to both paths, or load its module".into();
        let command =
            format!("export PATH={folder}/bin:$PATH LD_LIBRARY_PATH={folder}/lib:$LD_LIBRARY_PATH");
        finding.command = command.into();
    }
}

/// Whether no library on the path belongs to the launcher.
fn mixed(mpi: &Mpi, found: &[&Library], findings: &mut Findings) {
    let (Some(launcher), Some(kind)) = (&mpi.launcher, mpi.kind) else {
        return;
    };
    let fits = |library: &&Library| Kind::of(library).is_none_or(|other| other == kind);
    if !found.iter().any(fits) {
        let libraries = joined(found.iter().map(|library| described(library)), ", ");
        let seen = format!(
            "{} is of {kind}, the libraries are {libraries}",
            launcher.display()
        );
        findings.add(code::MPI_MIXED, seen);
    }
}

/// Open MPI asks for two variables (or an option), except of processes that it has started already.
fn root(facts: &Facts, mpi: &Mpi, findings: &mut Findings) {
    let is_set = |name: &str| facts.source.variable(name) == Some("1");
    let mut variables = ["OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"].into_iter();
    let is_started = facts.source.variable("OMPI_COMM_WORLD_SIZE").is_some();
    if mpi.is_root && mpi.kind == Some(Kind::OpenMpi) && !is_started && !variables.all(is_set) {
        let seen = "this process runs as root, and OMPI_ALLOW_RUN_AS_ROOT or its CONFIRM is not 1";
        findings.add(code::MPI_ROOT, seen);
    }
}
