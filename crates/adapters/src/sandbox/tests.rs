use super::*;

const ABI: Option<u32> = Some(7);
const PROFILES: [Option<SandboxProfile>; 4] =
    [None, Some(SandboxProfile::ReadOnly), Some(SandboxProfile::Workspace), Some(SandboxProfile::Off)];

/// Returns the profile that is applied, or the code of the refusal.
fn decided(
    landlock: Option<u32>,
    profile: Option<SandboxProfile>,
    adapter: Permissions,
    run: Permissions,
) -> String {
    let options = SandboxOptions { profile, landlock, ..SandboxOptions::default() };
    match options.decide(adapter, run, Path::new("/work")) {
        Ok(sandbox) => {
            let is_enforced = sandbox.enforcement == Enforcement::Landlock;
            assert_eq!(is_enforced, sandbox.profile != SandboxProfile::Off, "{sandbox:?}");
            sandbox.profile.name().to_owned()
        }
        Err(failure) => failure.code.to_string(),
    }
}

#[test]
fn a_run_that_may_not_act_is_read_only_with_any_configuration() {
    for profile in PROFILES {
        for adapter in [Permissions::Ask, Permissions::Legacy, Permissions::Deny] {
            assert_eq!(
                decided(ABI, profile, adapter, Permissions::Deny),
                "read_only",
                "{profile:?} {adapter:?}"
            );
        }
    }
}

#[test]
fn an_acting_run_follows_the_setting_or_without_one_its_permissions() {
    for permissions in [Permissions::Ask, Permissions::Legacy] {
        for profile in PROFILES.into_iter().flatten() {
            assert_eq!(decided(ABI, Some(profile), permissions, permissions), profile.name());
        }
    }
    assert_eq!(decided(ABI, None, Permissions::Ask, Permissions::Ask), "workspace");
    assert_eq!(decided(ABI, None, Permissions::Legacy, Permissions::Legacy), "off");
    // A delegated run: its adapter has high trust, its parent does not.
    assert_eq!(decided(ABI, None, Permissions::Legacy, Permissions::Ask), "workspace");
}

#[test]
fn without_landlock_only_runs_that_need_no_confinement_start() {
    let refused = "sandbox_unavailable";
    for adapter in [Permissions::Ask, Permissions::Deny] {
        assert_eq!(decided(None, None, adapter, Permissions::Deny), refused);
        assert_eq!(decided(None, Some(SandboxProfile::Workspace), adapter, Permissions::Deny), refused);
        assert_eq!(decided(None, Some(SandboxProfile::Off), adapter, Permissions::Deny), "off");
    }
    assert_eq!(decided(None, None, Permissions::Legacy, Permissions::Deny), "off");
    assert_eq!(decided(None, None, Permissions::Ask, Permissions::Ask), "off");
    for demanded in [SandboxProfile::ReadOnly, SandboxProfile::Workspace] {
        assert_eq!(decided(None, Some(demanded), Permissions::Ask, Permissions::Ask), refused);
    }
    let unconfined = SandboxOptions::default().decide(Permissions::Ask, Permissions::Ask, Path::new("/work"));
    let note = unconfined.unwrap().note.unwrap();
    assert!(note.contains("nothing confines the agent"), "{note}");
}

#[test]
fn a_folder_that_contains_the_state_directory_is_noted() {
    let home = tempfile::tempdir().unwrap();
    let state = home.path().join("state/mainspring");
    std::fs::create_dir_all(&state).unwrap();
    let options = SandboxOptions { hidden: vec![state], landlock: ABI, ..SandboxOptions::default() };
    let note = |folder: &Path| options.decide(Permissions::Ask, Permissions::Ask, folder).unwrap().note;
    let noted = note(home.path()).unwrap();
    assert!(noted.contains("new files and folders cannot be made directly"), "{noted}");
    std::fs::create_dir(home.path().join("work")).unwrap();
    assert_eq!(note(&home.path().join("work")), None);
}

#[test]
fn an_old_landlock_is_noted() {
    let options = SandboxOptions { landlock: Some(3), ..SandboxOptions::default() };
    let sandbox = options.decide(Permissions::Ask, Permissions::Ask, Path::new("/work")).unwrap();
    assert!(sandbox.note.unwrap().contains("does not restrict signals"));
}

#[test]
fn links_are_resolved_as_far_as_a_path_exists() {
    let folder = tempfile::tempdir().unwrap();
    let real = folder.path().canonicalize().unwrap();
    std::fs::create_dir(real.join("real")).unwrap();
    std::os::unix::fs::symlink(real.join("real"), real.join("link")).unwrap();
    assert_eq!(resolve(&real.join("link")), real.join("real"));
    assert_eq!(resolve(&real.join("link/new/file")), real.join("real/new/file"));
}
