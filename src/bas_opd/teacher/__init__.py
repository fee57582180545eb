"""The crop-conditioned teacher and how it follows the student."""

from bas_opd.teacher.crop import CropTeacher, TeacherMode

__all__ = ["CropTeacher", "TeacherMode"]
