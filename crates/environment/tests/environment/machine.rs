//! Machines in temporary folders: files for /proc, /sys, /dev and the libraries' places, and variables.
#![allow(dead_code, reason = "the benchmark uses a part")]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use candle_headroom_environment::Environment;
use candle_headroom_environment::Report;
use libloading::Library;

/// The folder of this program's machines, and the stand-ins for NVIDIA's libraries, new and old.
struct Workshop {
    folder: PathBuf,
    libraries: [PathBuf; 2],
}

static WORKSHOP: OnceLock<Workshop> = OnceLock::new();
static COUNT: AtomicU32 = AtomicU32::new(0);

fn workshop() -> &'static Workshop {
    WORKSHOP.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("machines");
        fs::create_dir_all(&folder).unwrap();
        let libraries = [("new", &[][..]), ("old", &["--cfg", "old"])].map(|(name, options)| {
            let library = folder.join(format!("{name}.so"));
            // Another program of these tests may be using it.
            let part = folder.join(format!("{name}-{}.so", std::process::id()));
            let source = folder.join(format!("{name}-{}.rs", std::process::id()));
            fs::write(&source, include_str!("stand_in.rs")).unwrap();
            let mut rustc = rustc();
            rustc.args([
                "--edition=2024",
                "--crate-type=cdylib",
                "--crate-name=stand_in",
                "--check-cfg=cfg(old)",
                "-Cpanic=abort",
                // Each machine has a copy of its own.
                "-Cstrip=symbols",
            ]);
            rustc.args(options).arg("-o").arg(&part).arg(&source);
            assert!(rustc.status().expect("rustc").success());
            fs::rename(part, &library).unwrap();
            fs::remove_file(source).unwrap();
            library
        });
        Workshop { folder, libraries }
    })
}

/// The compiler that builds this test, where cargo says which; cargo passes itself on to what it runs.
pub fn rustc() -> Command {
    let cargo = std::env::var_os("CARGO").map(PathBuf::from);
    let beside = cargo
        .map(|cargo| cargo.with_file_name("rustc"))
        .filter(|path| path.exists());
    Command::new(beside.unwrap_or_else(|| "rustc".into()))
}

/// A machine of its own, which goes away with the value.
pub struct Machine {
    root: PathBuf,
    variables: Vec<(String, String)>,
    kernels: Vec<(&'static str, String)>,
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}

pub const DRIVER: &str = "580.95.05";
pub const LIBRARIES: &str = "/usr/lib/x86_64-linux-gnu";
const TOOLKIT: &str = "/usr/local/cuda-13.0";

impl Machine {
    /// Linux under Windows, without a GPU.
    pub fn wsl() -> Self {
        let release = "5.15.153.1-microsoft-standard-WSL2\n";
        let machine = Self::plain().file("/proc/sys/kernel/osrelease", release);
        machine.file("/dev/dxg", "")
    }

    /// Linux with nothing in it.
    pub fn empty() -> Self {
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let root = format!("{}-{number}", std::process::id());
        let root = workshop().folder.join(root);
        fs::create_dir_all(&root).unwrap();
        Self {
            root,
            variables: Vec::new(),
            kernels: Vec::new(),
        }
    }

    /// A machine without a GPU.
    pub fn plain() -> Self {
        let meminfo = "MemTotal: 16777216 kB\nMemAvailable: 12582912 kB\nSwapTotal: 2097152 kB\nSwapFree: 2097152 kB\n";
        Self::empty()
            .file("/proc/meminfo", meminfo)
            .file(
                "/proc/cpuinfo",
                "processor : 0\nmodel name : Intel(R) Xeon(R) Platinum 8480+\nprocessor : 1\n",
            )
            .file("/proc/sys/kernel/osrelease", "6.8.0-48-generic\n")
            .file("/proc/mounts", "tmpfs /dev/shm tmpfs rw,nosuid,nodev 0 0\n")
            .file("/dev/kmsg", "5,1,2,-;Linux version 6.8.0-48-generic\n")
            .file("/usr/bin/c++", "")
            .variable("PATH", "/usr/local/cuda/bin:/usr/bin")
    }

    /// A GPU on the bus, and nothing for it.
    pub fn with_gpu(self) -> Self {
        self.file("/sys/bus/pci/devices/0000:18:00.0/vendor", "0x10de\n")
            .file("/sys/bus/pci/devices/0000:18:00.0/class", "0x030200\n")
            .file("/sys/bus/pci/devices/0000:00:1f.0/vendor", "0x8086\n")
            .file("/sys/bus/pci/devices/0000:00:1f.0/class", "0x060100\n")
    }

    pub fn with_module(self, version: &str) -> Self {
        self.file("/sys/module/nvidia/version", version)
    }

    pub fn with_nodes(self) -> Self {
        self.file("/dev/nvidia0", "")
            .file("/dev/nvidiactl", "")
            .file("/dev/nvidia-uvm", "")
    }

    /// The driver's user libraries: the stand-in, under both of their names.
    pub fn with_driver_libraries(self, version: &str) -> Self {
        self.stand_ins(version, 0)
            .library("libnvidia-ptxjitcompiler.so.1", version)
    }

    fn stand_ins(self, version: &str, which: usize) -> Self {
        for name in ["libcuda.so", "libnvidia-ml.so"] {
            let path = self.path(&format!("{LIBRARIES}/{name}.{version}"));
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::copy(&workshop().libraries[which], &path).unwrap();
            let link = path.with_file_name(format!("{name}.1"));
            let _ = fs::remove_file(&link);
            symlink(path.file_name().unwrap(), link).unwrap();
        }
        self
    }

    /// The stand-in under both names in another folder, as files without versions.
    pub fn with_stand_ins_in(self, folder: &str) -> Self {
        for name in ["libcuda.so.1", "libnvidia-ml.so.1"] {
            let path = self.path(&format!("{folder}/{name}"));
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::copy(&workshop().libraries[0], path).unwrap();
        }
        self
    }

    /// The same, without the functions that old drivers lack.
    pub fn with_old_driver_libraries(self, version: &str) -> Self {
        self.stand_ins(version, 1)
            .library("libnvidia-ptxjitcompiler.so.1", version)
    }

    /// A library that is only looked for, never loaded.
    pub fn library(self, soname: &str, version: &str) -> Self {
        self.library_in(LIBRARIES, soname, version)
    }

    pub fn library_in(self, folder: &str, soname: &str, version: &str) -> Self {
        let name = soname.split_once(".so.").unwrap().0;
        let file = format!("{name}.so.{version}");
        self.file(&format!("{folder}/{file}"), "")
            .link(&format!("{folder}/{soname}"), &file)
    }

    pub fn with_cuda_libraries(self) -> Self {
        self.library("libcudart.so.13", "13.0.96")
            .library("libcublas.so.13", "13.1.0.3")
            .library("libcublasLt.so.13", "13.1.0.3")
            .library("libcurand.so.10", "10.4.0.35")
            .library("libnvrtc.so.13", "13.0.88")
            .library("libcudnn.so.9", "9.13.0")
            .library("libnccl.so.2", "2.28.3")
    }

    pub fn with_toolkit(self) -> Self {
        self.file(&format!("{TOOLKIT}/bin/nvcc"), "")
            .file(
                &format!("{TOOLKIT}/version.json"),
                r#"{"cuda": {"name": "CUDA SDK", "version": "13.0.2"}}"#,
            )
            .link("/usr/local/cuda", "cuda-13.0")
    }

    /// A machine with an H200 and all that belongs to it.
    pub fn healthy() -> Self {
        Self::plain()
            .with_gpu()
            .with_module(&format!("{DRIVER}\n"))
            .with_nodes()
            .with_driver_libraries(DRIVER)
            .with_cuda_libraries()
            .with_toolkit()
    }

    /// Two GPUs, and the stand-in as NCCL, built with this CUDA.
    pub fn two_gpus(cuda: &str) -> Self {
        Self::healthy().with_nccl(cuda).answers("gpus=2")
    }

    pub fn with_nccl(self, cuda: &str) -> Self {
        let machine = self.library("libnccl.so.2", "2.28.3");
        let mut library = fs::read(&workshop().libraries[0]).unwrap();
        library.extend(format!("\0NCCL version 2.28.3+cuda{cuda}\0").bytes());
        machine.file(&format!("{LIBRARIES}/libnccl.so.2.28.3"), library)
    }

    /// Open MPI as Debian has it.
    pub fn with_mpi(self) -> Self {
        self.file("/usr/bin/orterun", "")
            .link("/usr/bin/mpirun", "orterun")
            .library("libmpi.so.40", "40.30.4")
            .file(
                &format!("{LIBRARIES}/pkgconfig/ompi.pc"),
                "Name: Open MPI\nVersion: 4.1.4\n",
            )
    }

    /// A card with one port, whose state is such as `4: ACTIVE`.
    pub fn with_port(self, device: &str, state: &str, rate: &str) -> Self {
        let folder = format!("/sys/class/infiniband/{device}/ports/1");
        self.file(&format!("{folder}/state"), format!("{state}\n"))
            .file(&format!("{folder}/rate"), format!("{rate}\n"))
            .file(&format!("{folder}/link_layer"), "InfiniBand\n")
    }

    /// Started as one of two ranks, by MPICH or Slurm.
    pub fn launched(self) -> Self {
        self.variable("PMI_RANK", "1").variable("PMI_SIZE", "2")
    }

    /// A docker container on a machine with a GPU, as it is without NVIDIA's runtime.
    pub fn container() -> Self {
        Self::plain()
            .with_gpu()
            .with_module(DRIVER)
            .file("/.dockerenv", "")
    }

    pub fn file(self, path: &str, text: impl AsRef<[u8]>) -> Self {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
        self
    }

    pub fn link(self, path: &str, target: &str) -> Self {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let _ = fs::remove_file(&path);
        symlink(target, path).unwrap();
        self
    }

    pub fn without(self, path: &str) -> Self {
        let path = self.path(path);
        fs::remove_file(&path)
            .or_else(|_| fs::remove_dir_all(&path))
            .unwrap();
        self
    }

    pub fn variable(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    pub fn kernels(mut self, name: &'static str, ptx: &str) -> Self {
        self.kernels.push((name, ptx.to_owned()));
        self
    }

    /// What NVML and libcuda answer: see `stand_in.rs`.
    pub fn answers(self, lines: &str) -> Self {
        self.set(lines);
        self
    }

    pub fn set(&self, lines: &str) {
        for name in ["libcuda.so.1", "libnvidia-ml.so.1", "libnccl.so.2"] {
            let path = self.path(&format!("{LIBRARIES}/{name}"));
            // Only some machines have NCCL, and on others it is an empty file.
            if name == "libnccl.so.2" && fs::metadata(&path).map_or(0, |file| file.len()) == 0 {
                continue;
            }
            // SAFETY: the stand-in's function takes a text's bytes and their number.
            unsafe {
                let library = Library::new(path.canonicalize().unwrap()).unwrap();
                let set = library
                    .get::<unsafe extern "C" fn(*const u8, usize)>(b"stand_in\0")
                    .unwrap();
                set(lines.as_ptr(), lines.len());
                // It has to stay, for the values to stay.
                std::mem::forget(library);
            }
        }
    }

    pub fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    pub fn environment(&self) -> Environment {
        // SAFETY: the libraries below the root are the stand-ins, and files that are no libraries.
        let environment = unsafe { Environment::new().root(&self.root) }
            .variables(self.variables.clone())
            .time_limit(Duration::from_secs(60));
        let kernels = self.kernels.iter();
        kernels.fold(environment, |environment, (name, ptx)| {
            environment.kernels(name, ptx)
        })
    }

    pub fn check(&self) -> Report {
        self.environment().check()
    }
}

/// The codes of a report, in its order.
pub fn codes(report: &Report) -> Vec<&'static str> {
    report
        .findings()
        .iter()
        .map(|finding| finding.code.id)
        .collect()
}
