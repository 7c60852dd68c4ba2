//! What the nop image covers: the paths and names under which it holds a link to `nop`.
//!
//! The list is data, `nop-names.txt`, read here and by the image build, so that the two cannot disagree.

use super::model::Container;

/// A line is a bare name, linked in every folder of [`FOLDERS`], or an absolute path. `#` starts a comment.
const NAMES: &str = include_str!("nop-names.txt");

/// Where a bare name is linked: the folders of the `PATH` that images usually have.
pub const FOLDERS: [&str; 6] = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];

/// Where Tekton puts scripts, whose interpreter is most likely a shell that we cover.
const SCRIPTS: &str = "/tekton/scripts/";

/// Every path in the image that is a link to nop.
pub fn paths() -> impl Iterator<Item = String> {
    lines().flat_map(|line| {
        let folders = if line.starts_with('/') { &[""][..] } else { &FOLDERS[..] };
        folders.iter().map(move |folder| if folder.is_empty() { line.to_owned() } else { format!("{folder}/{line}") })
    })
}

/// Would this container, with its image replaced by nop's, start and exit 0? Without a command it would: the image's
/// own entrypoint is nop.
#[must_use]
pub fn covers(container: &Container) -> bool {
    let Some(command) = container.command.first() else {
        return true;
    };
    if command.starts_with(SCRIPTS) {
        return true;
    }
    lines().any(|line| {
        line == command
            || (!line.starts_with('/')
                && command
                    .strip_suffix(line)
                    .and_then(|folder| folder.strip_suffix('/'))
                    .is_some_and(|folder| FOLDERS.contains(&folder)))
    })
}

fn lines() -> impl Iterator<Item = &'static str> {
    NAMES.lines().map(|line| line.split('#').next().unwrap_or_default().trim()).filter(|line| !line.is_empty())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use rstest::rstest;

    use super::*;

    fn running(command: &[&str]) -> Container {
        Container { command: command.iter().map(ToString::to_string).collect(), ..Container::default() }
    }

    #[rstest]
    #[case::the_images_own_entrypoint(&[])]
    #[case::a_shell(&["/bin/sh", "-ec", "exec agent"])]
    #[case::a_shell_by_name(&["bash", "-c", "true"])]
    #[case::a_wrapper(&["/usr/bin/tini", "--", "server"])]
    #[case::dapr(&["/daprd"])]
    #[case::cloud_sql_v1(&["/cloud_sql_proxy", "-instances=x"])]
    #[case::a_tekton_script(&["/tekton/scripts/sidecar-script-0-abcde"])]
    fn a_command_that_is_linked_is_covered(#[case] command: &[&str]) {
        assert!(covers(&running(command)));
    }

    #[rstest]
    #[case::a_users_program(&["/app/server"])]
    #[case::a_longer_name(&["/bin/push"])]
    #[case::a_known_name_in_another_folder(&["/opt/bin/sh"])]
    #[case::an_absolute_one_by_name(&["vault-agent"])]
    #[case::an_empty_one(&[""])]
    fn another_is_not(#[case] command: &[&str]) {
        assert!(!covers(&running(command)));
    }

    #[test]
    fn every_link_of_the_image_is_covered_and_stands_once() {
        let mut seen = BTreeSet::new();
        for path in paths() {
            assert!(path.starts_with('/') && !path.ends_with('/') && !path.contains("//"), "{path}");
            assert!(covers(&running(&[&path])), "{path}");
            assert!(seen.insert(path.clone()), "{path} stands twice");
        }
        assert!(seen.contains("/bin/sh") && seen.contains("/usr/local/bin/envoy"));
    }
}
